"""A problem that a user gives instead of one of the task's own: its fields, and its reward.

A user's problem often lacks what only the reward needs, such as tests. Then it is played without a
reward. A field that the agents' prompts need is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, TaskError, TaskFault, reason
from orchestry.core.types import Call, CallResult, Limits, Problem, Score, Tools
from orchestry.task.base import BaseTask
from orchestry.task.guard import MAX_STAGES, Play, endless, evaluated, task_boundary

NAME = "asked"
"""The id of a given problem that has none."""
UNSCORED = "unscored"
"""The tag of a trajectory whose reward can't be computed."""
SHOWN = 60
"""An example shows this many characters of a value."""


class Fields(dict[str, Any]):
    """A problem's data that remember which of their fields were read."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.read: list[str] = []
        """In the order of reading, each once."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if name not in self.read:
            self.read.append(name)
        return value


class Nowhere:
    """A sandbox that runs nothing: for finding out which fields `evaluate` reads."""

    async def run(
        self, code: str, entry_point: str, calls: Sequence[Call], limits: Limits | None = None
    ) -> list[CallResult]:
        """See Sandbox: every call fails."""
        return [CallResult("error", why="not run") for _ in calls]

    async def check(
        self, code: str, entry_point: str, test: str, limits: Limits | None = None
    ) -> CallResult:
        """See Sandbox: it fails."""
        return CallResult("error", why="not run")

    async def pytest(self, code: str, test: str, limits: Limits | None = None) -> CallResult:
        """See Sandbox: it fails."""
        return CallResult("error", why="not run")


def given(task: BaseTask[Any], config: RunConfig) -> Problem:
    """The problem that the config names, instead of the task's own ones.

    It is played to its end with empty answers and with a gold answer. Raises ConfigError if it is
    no problem, or lacks a field that these plays read.
    """
    problem, example = _problem(config.problem or {}), _example(task, config)
    try:
        list(_final_states(task, problem, example))
    except TaskFault as fault:
        lacking = _lacking(problem, example, _read_by_play(task, example))
        fix = f"{_absent(lacking)}: give a JSON object such as {_shown(lacking, example)}"
        why = fix if lacking else _why(fault)
        raise ConfigError(f"the input does not fit task {task.name}: {why}") from None
    return problem


async def unscorable(task: BaseTask[Any], problem: Problem, config: RunConfig) -> str:
    """Why the task can't compute the reward of a given problem; '' if it can."""
    example = _example(task, config)
    read = await _read_by_reward(task, example)
    # A field that the example has not may stand for one that it has: then only a try tells.
    same_kind = example is not None and problem.data.keys() <= example.data.keys()
    if same_kind and read and (lacking := _lacking(problem, example, read)):
        return _absent(lacking)
    try:
        for state in _final_states(task, problem, example):
            await evaluated(task, problem, state, Tools(Nowhere()))
    except TaskFault as fault:
        return _why(fault)
    return ""


def leave_unscored(task: BaseTask[Any]) -> None:
    """From now on the task gives every state a score of 0 with the tag UNSCORED, and its agents are
    told no score."""

    async def evaluate(state: Any, tools: Tools) -> Score:
        return task.score(tags=(UNSCORED,))

    vars(task).update(evaluate=evaluate, told=lambda state, score: state)


def _final_states(task: BaseTask[Any], problem: Problem, example: Problem | None) -> Iterator[Any]:
    """The final states of two plays: with empty answers, and with the gold answers of another
    problem. Every agent observes each of its states. Raises TaskFault."""
    yield _played(task, problem, lambda agent: "")
    gold = _gold(task, example)
    if gold:
        yield _played(task, problem, lambda agent: gold.get(agent, ""))


def _played(task: BaseTask[Any], problem: Problem, answer: Callable[[str], str]) -> Any:
    with task_boundary(task, "reset", problem):
        play = Play(task, problem, task.reset(problem, 0), answer)
    for _ in range(MAX_STAGES):
        agents = play.actors()
        if not agents:
            return play.state
        with task_boundary(task, "observe", problem):
            for agent in agents:
                task.observe(play.state, agent)
            play.state = play.step({agent: answer(agent) for agent in agents})
    raise endless(task, problem)


def _problem(raw: Mapping[str, Any]) -> Problem:
    try:
        return Problem.model_validate({"id": NAME, **raw})
    except ValidationError as error:
        raise ConfigError(
            f"the input is not a problem ({reason(error)}): give a text, or a JSON object with "
            "prompt and, where the task needs it, data"
        ) from None


def _example(task: BaseTask[Any], config: RunConfig) -> Problem | None:
    """The first of the task's own problems, if it has any."""
    with task_boundary(task, "problems"):
        return next(iter(task.problems(config.split)), None)


def _gold(task: BaseTask[Any], example: Problem | None) -> Mapping[str, str]:
    if example is None:
        return {}
    with task_boundary(task, "gold", example):
        return task.gold(example) or {}


def _absent(lacking: Mapping[str, Any]) -> str:
    return f"its data lack {', '.join(lacking)}"


def _why(fault: TaskFault) -> str:
    """The task's own error, without where it was raised if it names a cause."""
    cause = fault.__cause__
    return reason(cause) if isinstance(cause, TaskError) else str(fault)


def _lacking(problem: Problem, example: Problem | None, read: Sequence[str]) -> dict[str, Any]:
    """The fields that the input lacks, with the example's values.

    `read`: those that the same play of the example reads; none if the task copies its data first.
    """
    known = {} if example is None else example.data
    return {name: known[name] for name in read or known if name not in problem.data}


def _shown(lacking: Mapping[str, Any], example: Problem | None) -> str:
    fields = ", ".join(f"{json.dumps(name)}: {_short(value)}" for name, value in lacking.items())
    where = f" (from problem {example.id})" if example else ""
    return f'{{"prompt": "...", "data": {{{fields}}}}}{where}'


def _read_by_play(task: BaseTask[Any], example: Problem | None) -> list[str]:
    """The fields of the example's data that are read until its plays end."""
    if example is None:
        return []
    watched, fields = _watched(example)
    with suppress(TaskFault):
        list(_final_states(task, watched, example))
    return fields.read


async def _read_by_reward(task: BaseTask[Any], example: Problem | None) -> list[str]:
    """The fields of the example's data that are read until its plays are scored."""
    if example is None:
        return []
    watched, fields = _watched(example)
    with suppress(TaskFault):
        for state in _final_states(task, watched, example):
            await evaluated(task, watched, state, Tools(Nowhere()))
    return fields.read


def _watched(example: Problem) -> tuple[Problem, Fields]:
    fields = Fields(example.data)
    return example.model_copy(update={"data": fields}), fields


def _short(value: Any) -> str:
    """A value in JSON, cut where it is long."""
    if isinstance(value, str) and len(value) > SHOWN:
        value = f"{value[:SHOWN]}..."
    text = json.dumps(value, ensure_ascii=False)
    return text if isinstance(value, str) or len(text) <= SHOWN else '"..."'
