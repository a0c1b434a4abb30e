"""Agents that call tools: one move is a loop of calls until the agent answers.

Every call of a model goes through the gateway as any other. Every result of a tool is in the
journal, so a resume or a replay takes it from there. Of a tool with effects the journal also has
the beginning of each call: one that was cut off by a kill is not made again, and its result says
so.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestry.core.concurrency import together
from orchestry.core.digests import text_digest
from orchestry.core.secrets import Redactor
from orchestry.core.seeds import derive
from orchestry.core.tools import TOO_MANY, ToolCall, ToolContext
from orchestry.core.types import (
    AgentSpec,
    Completion,
    Message,
    Policy,
    Provider,
    Request,
    Sandbox,
    Step,
    sample_of,
    utf8,
)
from orchestry.models.gateway import Gateway
from orchestry.models.recorded import RecordedProvider
from orchestry.models.request_key import request_digest
from orchestry.store.journal import Event, Journal, Used
from orchestry.store.run import Store

CUT_OFF = "error: the process was stopped during this call; it may have had effects"
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "usd")
LAST = "(No calls are left in this turn: answer now.)"


class Results(Protocol):
    """What answers an agent's calls."""

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        """By role."""
        ...

    async def results(
        self, request: Request, made: Sequence[ToolCall], said: Completion
    ) -> tuple[str, ...]:
        """The results of the calls of an answer to the request, in order; `made` are the calls
        before it in the turn."""
        ...


class Toolbox:
    """The tools of a team in one process of a run. Each call is made once in a run."""

    def __init__(
        self,
        agents: Sequence[AgentSpec],
        sandbox: Sandbox,
        journal: Journal,
        events: Iterable[Event],
        recorded: Iterable[Used] = (),
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`events`: those of earlier processes; `recorded`: calls of runs that are played again,
        which are not made; `check` raises once no new call may begin."""
        self.agents = {spec.role: spec for spec in agents}
        self._sandbox, self._journal, self._clock = sandbox, journal, clock
        self._check, self._redactor = check, Redactor(os.environ)
        self._recorded = {event.key: event for event in recorded if event.result is not None}
        self._known = dict[str, str]()
        self._flying = dict[str, asyncio.Task[str]]()
        for event in events:
            if isinstance(event, Used):
                self._known[event.key] = CUT_OFF if event.result is None else event.result

    @property
    def in_flight(self) -> int:
        """Calls that are being made."""
        return sum(not task.done() for task in self._flying.values())

    async def results(
        self, request: Request, made: Sequence[ToolCall], said: Completion
    ) -> tuple[str, ...]:
        """See Results: all calls are made at once."""
        most = self.agents[request.agent].max_calls
        asked = _asked(request, made, said)
        return tuple(await together(self._result(one, most) for one in asked))

    async def _result(self, asked: _Asked, most: int) -> str:
        """From the journal; else the call is made, once, for all who wait for it."""
        if len(asked.before) >= most:
            return TOO_MANY
        key = asked.key
        if key in self._known:
            return self._known[key]
        if key not in self._flying:
            self._check()
            self._flying[key] = asyncio.create_task(self._made(key, asked))
        return await asyncio.shield(self._flying[key])

    async def _made(self, key: str, asked: _Asked) -> str:
        agent, tool = asked.request.agent, asked.call.name
        used = Used(key=key, agent=agent, tool=tool, result=None, at=self._clock())
        if (known := self._recorded.get(key)) is None:
            result = await self._called(used, asked)
            used = used.model_copy(update={"result": result, "at": self._clock()})
        else:
            used, result = known, known.result or ""
        self._journal.append(used)
        self._known[key] = result
        return result

    async def _called(self, used: Used, asked: _Asked) -> str:
        """Makes the call; of a tool with effects, its beginning is in the journal first."""
        spec = self.agents[used.agent]
        if any(one.effects and one.spec.name == used.tool for one in spec.every_tool):
            self._journal.append(used)
        return await asked.made(spec, self._sandbox, self._redactor)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call, the request whose answer has it, and the calls before it in the turn."""

    request: Request
    before: tuple[ToolCall, ...]
    call: ToolCall

    @property
    def key(self) -> str:
        """With all that the result may depend on: the calls themselves, since weights that are
        drawn from again may say something else to the same request, and the way to the state."""
        calls = [[one.name, one.arguments] for one in (*self.before, self.call)]
        said = text_digest(f"{self.request.path} {json.dumps(calls)}")[:16]
        return f"{request_digest(self.request)}.{len(self.before)}-{said}"

    async def made(self, spec: AgentSpec, sandbox: Sandbox, redactor: Redactor) -> str:
        """The call's result, without secrets."""
        request, problem = self.request, self.request.problem
        assert problem is not None, "an agent's request has one"
        known = {one.spec.name: one for one in spec.every_tool}
        text = f"error: there is no tool '{self.call.name}', only {', '.join(known)}"
        if (tool := known.get(self.call.name)) is not None:
            here = ToolContext(request.agent, problem, sandbox, request.state, self.before)
            text = await tool.use(self.call.arguments, here)
        return redactor.text(utf8(text), len(text))


@dataclass(frozen=True, slots=True)
class Unkept:
    """Makes every call, and writes nothing down: for tools without effects, outside a run."""

    specs: Sequence[AgentSpec]
    sandbox: Sandbox
    redactor: Redactor = field(default_factory=lambda: Redactor(os.environ))

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        """See Results."""
        return {spec.role: spec for spec in self.specs}

    async def results(
        self, request: Request, made: Sequence[ToolCall], said: Completion
    ) -> tuple[str, ...]:
        """See Results."""
        spec, asked = self.agents[request.agent], _asked(request, made, said)
        return tuple(await together(one.made(spec, self.sandbox, self.redactor) for one in asked))


def _asked(request: Request, made: Sequence[ToolCall], said: Completion) -> Iterator[_Asked]:
    """The calls of an answer, each with those before it."""
    calls = [*made, *said.calls]
    for place in range(len(made), len(calls)):
        yield _Asked(request, tuple(calls[:place]), calls[place])


def toolbox(
    agents: Sequence[AgentSpec],
    providers: Sequence[Provider],
    sandbox: Sandbox,
    store: Store,
    gateway: Gateway,
) -> Toolbox | None:
    """The tools of a run's agents; None if they have none. Where a provider plays a recorded run
    again, its tools are not called."""
    if not any(spec.tools for spec in agents):
        return None
    used = [event for one in providers if isinstance(one, RecordedProvider) for event in one.used]
    return Toolbox(agents, sandbox, store.journal, store.events, used, gateway.check_door)


def noted(messages: Sequence[Message], most: int) -> tuple[Message, ...]:
    """A prompt after calls as models see it. Where none of `most` calls is left, the last result
    says so: no vendor tells its model, and weights see text alone."""
    if sum(len(message.calls) for message in messages) < most:
        return tuple(messages)
    told = f"{messages[-1].content}\n\n{LAST}"
    return (*messages[:-1], messages[-1].model_copy(update={"content": told}))


@dataclass(slots=True)
class _Move:
    """One agent's move as it goes on."""

    request: Request
    """Its first request, as that sample has it."""
    answer: Completion
    """The last one."""
    asked: Request
    """The request of the last answer."""
    steps: list[Step] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether the last answer has calls to make."""
        return bool(self.answer.calls) and not (self.asked.must_answer or self.answer.failed)

    @property
    def made(self) -> list[ToolCall]:
        """Calls of tools so far."""
        return [call for step in self.steps for call in step.said.calls]

    def next(self, most: int) -> Request:
        """The request that shows all steps so far; `most` calls may be made."""
        shown = [message for step in self.steps for message in step.messages]
        changes = {
            "messages": (*self.request.messages, *noted(shown, most)),
            "seed": derive(self.request.seed, "step", len(self.steps)),
            "must_answer": len(self.made) >= most,
        }
        return self.request.model_copy(update=changes)

    @property
    def whole(self) -> Completion:
        """The last answer, with what the whole move cost."""
        if not self.steps or self.answer.failed:
            return self.answer
        last = {"steps": tuple(self.steps), "calls": ()}  # what it still asks for is not made
        whole = self.answer.model_copy(update=last)
        counts = {name: sum(getattr(one, name) for one in whole.answers) for name in _COUNTS}
        return whole.model_copy(update=counts)


@dataclass(frozen=True, slots=True)
class WithTools:
    """A policy whose agents may call tools before they answer."""

    policy: Policy
    toolbox: Results
    in_step: bool = False
    """Whether all moves go on together, since the policy answers in batches."""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy. An answer after calls has `steps`, and the counts of the whole move; a call
        of the model that failed for good fails it."""
        drawn = await self.policy.sample(requests, n)
        moves = [
            _Move(first, answer, first)
            for request, answers in zip(requests, drawn, strict=True)
            for j, answer in enumerate(answers)
            for first in [sample_of(request, j)]
        ]
        if self.in_step:
            await self._finish(moves)
        else:
            await together(self._finish([move]) for move in moves)
        return [[move.whole for move in moves[i * n : (i + 1) * n]] for i in range(len(requests))]

    async def _finish(self, moves: Sequence[_Move]) -> None:
        """Makes calls and asks again until all have answered."""
        while going := [move for move in moves if move.goes_on]:
            await together(self._call(move) for move in going)
            asked = [self._next(move) for move in going]
            for move, (answer,) in zip(going, await self.policy.sample(asked, 1), strict=True):
                move.answer = answer

    async def _call(self, move: _Move) -> None:
        results = await self.toolbox.results(move.asked, move.made, move.answer)
        move.steps.append(Step(said=move.answer, results=results))

    def _next(self, move: _Move) -> Request:
        asked = move.next(self.toolbox.agents[move.request.agent].max_calls)
        move.asked = sample_of(asked, 0)
        return asked
