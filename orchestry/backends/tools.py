"""Agents that call tools: one move is a loop of calls until the agent answers.

Every call of a model goes through the gateway as any other. Every result of a tool is in the
journal, so a resume or a replay takes it from there. Of a tool with effects the journal also has
the beginning of each call: one that was cut off by a kill is not made again, and its result says
so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestry.core.concurrency import together
from orchestry.core.seeds import derive
from orchestry.core.tools import Tool, ToolContext
from orchestry.core.types import (
    AgentSpec,
    Completion,
    Policy,
    Request,
    Sandbox,
    Step,
    sample_of,
    utf8,
)
from orchestry.models.request_key import request_digest
from orchestry.store.journal import Event, Journal, Used

CUT_OFF = "error: the process was stopped during this call; it may have had effects"
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "usd")
TOO_MANY = "error: no calls are left in this turn: answer now"


class Results(Protocol):
    """What answers an agent's calls."""

    @property
    def agents(self) -> Mapping[str, AgentSpec]:
        """By role."""
        ...

    async def results(self, request: Request, calls: int, said: Completion) -> tuple[str, ...]:
        """The results of the calls of an answer to the request, in order; `calls` were made in the
        turn before."""
        ...


class Toolbox:
    """The tools of a team in one process of a run. Each call is made once in a run."""

    def __init__(
        self,
        agents: Sequence[AgentSpec],
        sandbox: Sandbox,
        journal: Journal,
        events: Iterable[Event],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`events`: those of earlier processes, or of a recorded run."""
        self.agents = {spec.role: spec for spec in agents}
        self._sandbox, self._journal, self._clock = sandbox, journal, clock
        self._known = dict[str, str]()
        self._flying = dict[str, asyncio.Task[str]]()
        for event in events:
            if isinstance(event, Used):
                self._known[event.key] = CUT_OFF if event.result is None else event.result

    async def results(self, request: Request, calls: int, said: Completion) -> tuple[str, ...]:
        """See Results: all calls are made at once."""
        digest, most = request_digest(request), self.agents[request.agent].max_calls
        return tuple(
            await together(
                self._result(f"{digest}.{place}", request, place, said)
                if calls + place < most
                else _refused()
                for place in range(len(said.calls))
            )
        )

    async def _result(self, key: str, request: Request, place: int, said: Completion) -> str:
        """From the journal; else the call is made, once, for all who wait for it."""
        if key in self._known:
            return self._known[key]
        if key not in self._flying:
            made = self._made(key, request, said.calls[place].name, said.calls[place].arguments)
            self._flying[key] = asyncio.create_task(made)
        return await asyncio.shield(self._flying[key])

    async def _made(self, key: str, request: Request, name: str, arguments: str) -> str:
        spec, began = self.agents[request.agent], self._clock()
        known = {one.spec.name: one for one in spec.every_tool}
        used = Used(key=key, agent=spec.role, tool=utf8(name), result=None, at=began)
        if (found := known.get(name)) is None:
            text = f"error: there is no tool '{name}', only {', '.join(known)}"
        else:
            if found.effects:
                self._journal.append(used)
            text = await self._called(found, request, arguments)
        result, now = utf8(text), self._clock()
        ended = {"result": result, "at": now, "seconds": now - began}
        self._journal.append(used.model_copy(update=ended))
        self._known[key] = result
        return result

    async def _called(self, found: Tool, request: Request, arguments: str) -> str:
        assert request.problem is not None, "an agent's request has one"
        context = ToolContext(request.agent, request.problem, self._sandbox)
        return await found.use(arguments, context)


async def _refused() -> str:
    return TOO_MANY


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
    def made(self) -> int:
        """Calls of tools so far."""
        return sum(len(step.said.calls) for step in self.steps)

    def next(self, most: int) -> Request:
        """The request that shows all steps so far; `most` calls may be made."""
        shown = (message for step in self.steps for message in step.messages)
        changes = {
            "messages": (*self.request.messages, *shown),
            "seed": derive(self.request.seed, "step", len(self.steps)),
            "must_answer": self.made >= most,
        }
        return self.request.model_copy(update=changes)

    @property
    def whole(self) -> Completion:
        """The last answer, with what the whole move cost."""
        if not self.steps or self.answer.failed:
            return self.answer
        said = [*(step.said for step in self.steps), self.answer]
        counts = {name: sum(getattr(one, name) for one in said) for name in _COUNTS}
        return self.answer.model_copy(update={**counts, "steps": tuple(self.steps)})


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
