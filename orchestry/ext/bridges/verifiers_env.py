"""A task as an environment of verifiers: its roles are agents, its problems tasks (written for
verifiers 0.4).

Each move is a run of an agent, of one call. All runs of an episode get the team's reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import new_class
from typing import Any, ClassVar

import verifiers.v1 as vf
from pydantic import create_model

from orchestry.core.concurrency import together
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import (
    ROOT,
    Completion,
    Limits,
    Member,
    Problem,
    Request,
    Split,
    Tools,
    Trajectory,
)
from orchestry.ext.bridges.verifiers import CHAT, LOCAL
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.task.base import BaseTask
from orchestry.task.programs.agent_task import AgentTask


def classes(task: BaseTask[Any], unsafe: bool) -> tuple[type, type]:
    """Its taskset and its environment. Raises ConfigError if it can't be played there."""
    tooled = [spec.role for spec in task.agents if spec.tools]
    if isinstance(task, AgentTask) or tooled:
        why = f"{tooled[0]} has tools" if tooled else "a program plays it"
        raise ConfigError(
            f"task {task.name} can't be played by verifiers, since {why}: export one whose agents "
            "only answer"
        )
    seat = vf.AgentConfig.model_validate({"harness": {"id": CHAT}, "runtime": LOCAL})
    roles: Any = {spec.role: (vf.AgentConfig, seat) for spec in task.agents}
    config = create_model("TeamConfig", __base__=vf.EnvConfig, **roles)
    own = {"task": task, "unsafe": unsafe}
    team = new_class("Team", (_Team, vf.Env[config]), exec_body=lambda names: names.update(own))
    return type("Problems", (_Problems,), {"task": task}), team


class _Row(vf.TaskData):  # type: ignore[misc]
    split: Split


class _Task(vf.Task[_Row]):  # type: ignore[misc]
    """A problem, which is found by its id where it is played: its answer is in no trace."""


class _Config(vf.TasksetConfig):  # type: ignore[misc]
    split: Split = "train"


class _Problems(vf.Taskset[_Task, _Config]):  # type: ignore[misc]
    task: ClassVar[BaseTask[Any]]

    def load(self) -> Iterator[_Task]:
        for problem in self.task.problems(self.config.split):
            row = _Row(id=problem.id, prompt=problem.prompt, split=problem.split)
            yield _Task(row, self.config.task)


class _Team(vf.Env[vf.EnvConfig]):  # type: ignore[misc]
    task: ClassVar[BaseTask[Any]]
    unsafe: ClassVar[bool]

    async def start(self) -> None:
        """Opens the sandbox."""
        self._open = AsyncExitStack()
        sandbox = open_sandbox(Limits(), allow_unsafe=self.unsafe)
        self._tools = Tools(sandbox=await self._open.enter_async_context(sandbox))

    async def stop(self) -> None:
        await self._open.aclose()

    async def run(self, task: Any, agents: Any) -> None:
        """One episode. Raises TaskError if a call failed for good."""
        problem = self._problem(task.data)
        seats = _Seats(agents, problem.id)
        rate = task_rater(self.task, self._tools)
        rollout = Rollout(self.task, _members(self.task), seats, rate, Chains(1))
        start = Trajectory(ROOT, problem, 0, self.task.reset(problem, 0))
        (end,) = await rollout.go_on([start], [0])
        if rollout.actors(end):
            raise TaskError(f"task {self.task.name}: problem {problem.id}: {seats.failed}")
        (score,) = await rate([end])
        for trace in seats.traces:
            trace.record_reward("reward", score.total)
            trace.record_metrics({part.name: part.value for part in score.parts})
            trace.info.update(feedback=score.feedback, tags=[*score.tags])

    def _problem(self, row: Any) -> Problem:
        return next(one for one in self.task.problems(row.split) if one.id == row.id)


@dataclass(slots=True)
class _Seats:
    """The policy of one episode: verifiers' agents answer."""

    agents: Any
    name: str
    """The problem's."""
    traces: list[Any] = field(default_factory=list)
    failed: str = ""

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy; `n` is 1."""
        return [[answer] for answer in await together(map(self._answer, requests))]

    async def _answer(self, request: Request) -> Completion:
        *system, observed = (message.content for message in request.messages)
        row = vf.TaskData(name=self.name, system_prompt="".join(system) or None, prompt=observed)
        trace = await getattr(self.agents, request.agent).run(vf.Task(row))
        self.traces.append(trace)
        if not trace.ok:
            self.failed = f"{request.agent} failed ({trace.last_error.message})"
            return Completion(text="", model=request.model, failed=self.failed)
        said = [message.content or "" for message in trace.assistant_messages]
        return Completion(text=said[-1] if said else "", model=request.model)


def _members(task: BaseTask[Any]) -> dict[str, Member]:
    """The team before learning. verifiers decides on models and lengths."""
    config = RunConfig()
    return {
        spec.role: Member(spec.role, config.system_prompt(spec), spec.role, 1)
        for spec in task.agents
    }
