"""A task's own code, called: what it raises becomes one kind of error, a fault of the task, and
what has answers already is played to its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from pathlib import Path
from traceback import extract_tb
from typing import Any

from orchestry.core.errors import OrchestryError, TaskError, TaskFault, reason
from orchestry.core.types import Problem, Score, Tools
from orchestry.task.base import BaseTask

MAX_STAGES = 1000


async def evaluated(task: BaseTask[Any], problem: Problem, state: Any, tools: Tools) -> Score:
    """What the task's evaluate, a coroutine or not, says of a state. Raises TaskFault."""
    with task_boundary(task, "evaluate", problem):
        found: Any = task.evaluate(state, tools)
        score = await found if isawaitable(found) else found
        if isinstance(score, Score):
            "".join((score.feedback, *score.tags)).encode()  # a lone surrogate would reach no file
    if not isinstance(score, Score):
        raise TaskFault(
            f"task {task.name}: evaluate gave a {type(score).__name__} on problem "
            f"{problem.id}: return a Score, as self.score(...) makes one"
        )
    total = score.total
    if not (math.isfinite(total) and 0.0 <= total <= 1.0):
        parts = ", ".join(f"{p.name}={p.value:g} (weight {p.weight:g})" for p in score.parts)
        raise TaskFault(
            f"task {task.name}: evaluate gave a total of {total:g} on problem {problem.id} "
            f"({parts or 'no parts'}): return parts in [0, 1] whose weights are not all zero"
        )
    return score


@contextmanager
def task_boundary(
    task: BaseTask[Any], method: str, problem: Problem | None = None
) -> Iterator[None]:
    """Turns what a task's own code raises into one TaskFault that names the place. What is no
    fault of the task (the sandbox, a stop) passes, also out of a task group of its own."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # libraries panic in errors of their own, such as pyo3's
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


def stages(
    task: BaseTask[Any], problem: Problem, state: Any, answer: Callable[[str], str]
) -> Iterator[tuple[dict[str, str], Any]]:
    """What is said in each stage, and the state after it, where each agent's answer is known.

    Raises TaskFault, and TaskError where the task does not end within MAX_STAGES.
    """
    for _ in range(MAX_STAGES):
        with task_boundary(task, "step", problem):
            texts = {agent: answer(agent) for agent in task.to_act(state)}
            if not texts:
                return
            state = task.step(state, texts)
        yield texts, state
    raise endless(task, problem)


def count_stages(task: BaseTask[Any], problem: Problem) -> int:
    """Stages of an episode in which every agent answers with nothing. Raises as `stages` does."""
    with task_boundary(task, "reset", problem):
        state = task.reset(problem, 0)
    count = sum(1 for _ in stages(task, problem, state, lambda agent: ""))
    if not count:
        raise TaskError(
            f"task {task.name}: nobody acts in the first state of problem {problem.id}: let to_act "
            "name an agent there"
        )
    return count


def endless(task: BaseTask[Any], problem: Problem) -> TaskError:
    """What is wrong with a task that goes on for ever."""
    return TaskError(
        f"task {task.name} does not end within {MAX_STAGES} stages on problem {problem.id}: "
        "let to_act return () once the work is over"
    )


def tells(task: BaseTask[Any]) -> bool:
    """Whether the agents may be told how a state was scored before they act in it."""
    return type(task).told is not BaseTask.told


def said(fault: TaskFault) -> str:
    """The fault without the task's name and what to do about it, for a check of that task."""
    return str(fault).partition(": ")[2].partition(": `orchestry")[0]


def _stopped() -> bool:
    """Whether this piece of work was cancelled from outside; else what was cancelled is of the
    task itself, and would end an episode without a word."""
    try:
        current = asyncio.current_task()
    except RuntimeError:  # no loop runs, so nobody stops it
        return False
    return current is None or current.cancelling() > 0


def _ours(error: BaseException) -> OrchestryError | None:
    """The error of ours that it is, or that a group holds."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := _ours(one))), None)
    return error if isinstance(error, OrchestryError) else None
