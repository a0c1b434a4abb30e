"""Calls a task's own code and turns its exceptions into TaskFault; plays given answers to the
end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from traceback import extract_tb
from typing import Any, Generic

from orchestry.core.errors import (
    Endless,
    OrchestryError,
    RewardFault,
    TaskError,
    TaskFault,
    reason,
    unknown,
)
from orchestry.core.types import Problem, Score, StateT, Tools
from orchestry.task.base import BaseTask

MAX_STAGES = 1000


async def evaluated(
    task: BaseTask[Any], problem: Problem, state: Any, tools: Tools, single: str | None = None
) -> Score:
    """The task's score of a state, or of the answer `single` of one agent alone; its evaluate may
    be a coroutine or not. Raises TaskFault."""
    with task_boundary(task, "evaluate" if single is None else "evaluate_single", problem):
        found: Any = (
            task.evaluate(state, tools)
            if single is None
            else task.evaluate_single(state, single, tools)
        )
        score = await found if isawaitable(found) else found
        if isinstance(score, Score):
            "".join((score.feedback, *score.tags)).encode()  # files refuse lone surrogates
    if not isinstance(score, Score):
        raise RewardFault(
            f"task {task.name}: evaluate gave a {type(score).__name__} on problem "
            f"{problem.id}: return a Score, as self.score(...) makes one"
        )
    total = score.total
    if not (math.isfinite(total) and 0.0 <= total <= 1.0):
        parts = ", ".join(f"{p.name}={p.value:g} (weight {p.weight:g})" for p in score.parts)
        raise RewardFault(
            f"task {task.name}: evaluate gave a total of {total:g} on problem {problem.id} "
            f"({parts or 'no parts'}): return parts in [0, 1] whose weights are not all zero"
        )
    return score


@contextmanager
def task_boundary(
    task: BaseTask[Any], method: str, problem: Problem | None = None
) -> Iterator[None]:
    """Turns an exception of a task's own code into a TaskFault that names the place. Errors that
    are not the task's fault (the sandbox, a stop) pass unchanged, also from its own task group."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # libraries have their own panics, such as pyo3's
        if isinstance(error, asyncio.CancelledError) and _stopped():
            raise
        ours = _ours(error)
        if isinstance(ours, TaskError):
            raise TaskFault(str(ours)) from error
        if ours is error:
            raise
        if ours is not None:
            raise ours from None
        frames = extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        where = f"on problem {problem.id} ({place})" if problem else f"({place})"
        raise TaskFault(
            f"task {task.name}: {method} raised {type(error).__name__}: {reason(error)} {where}: "
            f"`orchestry tasks check {task.name}` shows the case"
        ) from error


@dataclass(slots=True)
class Play(Generic[StateT]):
    """A game from a state on with known answers; iterating over it plays it.

    Between two stages `state` may be replaced, by one whose agents were told its score. Raises
    TaskFault, TaskError for an agent that the team lacks, and Endless after `most` stages.
    """

    task: BaseTask[StateT]
    problem: Problem
    state: StateT
    answer: Callable[[str], str]
    most: int = MAX_STAGES
    stage: int = 0
    """How many were played."""

    def __iter__(self) -> Iterator[dict[str, str]]:
        """The messages of each stage; `state` is then the state after it."""
        while agents := self.actors():
            if self.stage == self.most:
                raise endless(self.task, self.problem)
            with task_boundary(self.task, "step", self.problem):
                texts = {agent: self.answer(agent) for agent in agents}
                self.state = self.step(texts)
            self.stage += 1
            yield texts

    def actors(self) -> tuple[str, ...]:
        """Who acts in the state."""
        return actors(self.task, self.problem, self.state)

    def step(self, texts: Mapping[str, str]) -> StateT:
        """The state after these answers."""
        return self.task.step(self.state, texts)


def actors(task: BaseTask[StateT], problem: Problem, state: StateT) -> tuple[str, ...]:
    """Who acts in a state; () at the end. Raises TaskError for an agent that the team lacks."""
    with task_boundary(task, "to_act", problem):
        named = tuple(task.to_act(state))
    team = [agent.role for agent in task.agents]
    for role in named:
        if role not in team:
            raise TaskError(unknown(f"agent from {task.name}.to_act", role, team))
    return named


def count_stages(task: BaseTask[Any], problem: Problem) -> int:
    """Number of stages if every agent answers with nothing. Raises as Play does."""
    with task_boundary(task, "reset", problem):
        state = task.reset(problem, 0)
    count = sum(1 for _ in Play(task, problem, state, lambda agent: ""))
    if not count:
        raise TaskError(
            f"task {task.name}: nobody acts in the first state of problem {problem.id}: let to_act "
            "name an agent there"
        )
    return count


def endless(task: BaseTask[Any], problem: Problem) -> Endless:
    """The error for a task that never ends."""
    return Endless(
        f"task {task.name} does not end within {MAX_STAGES} stages on problem {problem.id}: "
        "let to_act return () once the work is over"
    )


def tells(task: BaseTask[Any]) -> bool:
    """Whether the agents may be told how a state was scored before they act in it."""
    inner = vars(task).get("task")
    if isinstance(inner, BaseTask) and not tells(inner):  # a wrapper passes it on to the task
        return False
    return type(task).told is not BaseTask.told


def said(fault: TaskFault) -> str:
    """The fault's text without the task's name and the fix, for `tasks check`."""
    return str(fault).partition(": ")[2].partition(": `orchestry")[0]


def _stopped() -> bool:
    """Whether this work was cancelled from outside; otherwise the task cancelled itself, which
    would end an episode silently."""
    try:
        current = asyncio.current_task()
    except RuntimeError:  # no event loop, so nothing was cancelled from outside
        return False
    return current is None or current.cancelling() > 0


def _ours(error: BaseException) -> OrchestryError | None:
    """Our own error, if it is one or its group contains one."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := _ours(one))), None)
    return error if isinstance(error, OrchestryError) else None
