"""AgentTask: a task whose episodes are played by the user's own program.

The program asks for each agent at an address of its own, as it would ask a vendor. A run sees the
calls as moves of its agents, and the Score that the program returns.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from orchestry.core.errors import TaskError
from orchestry.core.tools import ToolSpec
from orchestry.core.types import AgentSpec, Member, Message, Problem, Score, Tools
from orchestry.task.base import BaseTask

if TYPE_CHECKING:
    from orchestry.task.programs.host import Host, Program


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of a model that a program waits for."""

    role: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    must_answer: bool = False
    """Whether no tool may be called."""
    must_call: str = ""
    """The tool that must be called, or ANY; see Request."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    """JSON schema of a structured answer."""
    place: str = ""
    """What tells it from the other calls of its rollout, in whatever order parallel ones come, so
    that a resume finds their answers: what is asked, and how often it was asked before."""

    def shown(self, member: Member) -> tuple[Message, ...]:
        """What the model sees: the program's messages, with what the agent has learned at the end
        of the system prompt, and its examples before the rest."""
        first = [*takewhile(lambda message: message.role == "system", self.messages)]
        texts = [*(message.content for message in first), member.system_prompt]
        said = "\n\n".join(filter(None, texts))
        examples = [turn for example in member.examples for turn in example.messages]
        system = [Message(role="system", content=said)] if said else []
        return (*system, *examples, *self.messages[len(first) :])


@dataclass(frozen=True, slots=True)
class Conversation:
    """The state of an AgentTask. Without a program (in a dry run or a check) it goes on for as many
    calls as are allowed, one agent after the other."""

    problem: Problem
    calls: int = 0
    """Made so far."""
    asks: tuple[Ask, ...] = ()
    """What the program waits for, at most one call per role."""
    score: Score | None = None
    fault: TaskError | None = None
    """Why the program ended without a score."""
    program: Program | None = field(default=None, compare=False, repr=False)

    def ask(self, role: str) -> Ask:
        """The call that this agent answers now; without a program, one that shows the problem."""
        found = next((one for one in self.asks if one.role == role), None)
        shows = Message(role="user", content=self.problem.prompt)
        return found or Ask(role, (shows,), place=str(self.calls))


@dataclass(slots=True)
class _End:
    """What is to be done once a rollout is over. The program's thread adds, the run's ends it."""

    _calls: list[Callable[[], object]] = field(default_factory=list)
    _come: bool = False
    _lock: Lock = field(default_factory=Lock)

    def add(self, call: Callable[[], object]) -> None:
        with self._lock:
            if not self._come:
                self._calls.append(call)
                return
        call()

    def come(self) -> None:
        with self._lock:
            calls, self._calls, self._come = self._calls, [], True
        for call in calls:
            call()


@dataclass(frozen=True, slots=True)
class Team:
    """The agents, as a program reaches them in one rollout."""

    roles: tuple[str, ...]
    seed: int
    """For what the program itself draws at random: the same when a run is resumed."""
    key: str
    """Of this rollout, for the clients' `api_key`."""
    _address: str
    _end: _End = field(default_factory=lambda: _End(), repr=False)

    @property
    def url(self) -> str:
        """For the `base_url` of a client that asks several agents, each by its role as `model`; a
        team of one answers to any model name."""
        return f"{self._address}/v1"

    def base_url(self, role: str) -> str:
        """For the `base_url` of an OpenAI or Anthropic client that asks this agent; any model name
        will do. Raises TaskError for a role that the team lacks."""
        if role not in self.roles:
            raise TaskError(f"the team has no agent '{role}', only {', '.join(self.roles)}")
        return f"{self._address}/{quote(role, safe='')}/v1"

    def at_end(self, close: Callable[[], object]) -> None:
        """Calls `close` once the rollout is over, also when it was given up; at once, if it is."""
        self._end.add(close)

    def close(self) -> None:
        """The rollout is over."""
        self._end.come()


def variable(role: str) -> str:
    """The environment variable with an agent's address."""
    return "ORCHESTRY_URL_" + re.sub(r"\W", "_", role).upper()


def check_roles(task: str, roles: Sequence[str]) -> None:
    """Raises TaskError for roles that a program could not reach, or not tell apart."""
    if "v1" in roles:
        raise TaskError(f"task {task}: v1 names the whole team, so no agent: rename it")
    named = dict[str, str]()
    for role in roles:
        if (other := named.setdefault(variable(role), role)) != role:
            raise TaskError(
                f"task {task}: the agents {other} and {role} would both have their address in "
                f"{variable(role)}: rename one"
            )


class AgentTask(BaseTask[Conversation]):
    """Write `agents`, `problems`, and `play` or `command`; see docs/your-agents.md."""

    command: ClassVar[tuple[str, ...]] = ()
    """A program to start for each rollout, in place of `play`: see programs/command.py."""
    reward_max: ClassVar[float] = 1.0
    """The highest reward that a command prints; each is divided by it."""
    max_turns: ClassVar[int] = 16
    """Most calls of models in one rollout; the next is refused."""
    timeout_s: ClassVar[float] = 600.0
    """Longest time without a call and without an end; then the rollout has failed."""
    models: ClassVar[Mapping[str, str]] = {}
    """What the program calls an agent's model, by role, where that is not the role itself."""
    marks: ClassVar[Mapping[str, str]] = {}
    """By role, a text in its system prompt that tells it from others of the same model; without
    one, the role itself as a word."""
    judged: ClassVar[bool] = False
    host: Host | None = None
    """What answers the programs; None where none is run."""

    def play(self, problem: Problem, team: Team) -> Awaitable[Score] | Score:
        """One rollout, from the user's own program; a coroutine or a plain function.

        Runs in a thread of its own, so it may block. What it raises makes this rollout score 0.
        """
        from orchestry.task.programs.command import run_command

        return run_command(self, problem, team)

    def asked_agents(self) -> tuple[AgentSpec, ...]:
        """Without prompts of our own making: the program has its own."""
        if type(self).play is AgentTask.play and not self.command:
            raise TaskError(f"task {self.name} has no program: write play, or set command")
        if not 0 < self.reward_max < math.inf:
            raise TaskError(f"task {self.name}: reward_max is {self.reward_max}: set it above 0")
        check_roles(self.name, roles := [spec.role for spec in self.agents])
        if odd := [one for one in (*self.models, *self.marks) if one not in roles]:
            raise TaskError(
                f"task {self.name}: `models` or `marks` names {odd[0]}, and its agents are "
                f"{', '.join(roles)}: name one of these"
            )
        for spec in self.agents:
            if spec.tools:
                raise TaskError(
                    f"task {self.name}: {spec.role} has tools, and the program of an AgentTask "
                    "calls its own: pass them in its calls, and leave AgentSpec.tools out"
                )
        return tuple(spec.model_copy(update={"programmed": True}) for spec in self.agents)

    @asynccontextmanager
    async def serving(self, *, structured: bool = True) -> AsyncIterator[None]:
        """Within it, rollouts are played by the program; `structured`: whether answers may be asked
        for by a schema. Raises ConfigError if a package is missing."""
        from orchestry.task.programs.host import Host

        async with Host(self, structured=structured).open() as host:
            self.host = host
            try:
                yield
            finally:
                self.host = None

    def reset(self, problem: Problem, seed: int) -> Conversation:
        return Conversation(problem)

    def to_act(self, state: Conversation) -> tuple[str, ...]:
        if state.program is not None:
            return tuple(ask.role for ask in state.asks)
        agents = self.agents
        return (agents[state.calls % len(agents)].role,) if state.calls < self.max_turns else ()

    def observe(self, state: Conversation, agent: str) -> str:
        return state.ask(agent).messages[-1].content

    def step(self, state: Conversation, actions: Mapping[str, str]) -> Conversation:
        left = tuple(ask for ask in state.asks if ask.role not in actions)
        return replace(state, calls=state.calls + len(actions), asks=left)

    async def evaluate(self, state: Conversation, tools: Tools) -> Score:
        if state.fault is not None:
            raise state.fault
        return state.score or self.score()
