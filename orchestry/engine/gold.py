"""The train problems' gold answers, played as the team would: what each agent sees, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry.core.concurrency import together
from orchestry.core.errors import ConfigError
from orchestry.core.types import Completion, Member, Problem, Request, Tools
from orchestry.engine.run import in_own_loop
from orchestry.engine.winners import Lesson, lesson
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.task.base import BaseTask
from orchestry.task.guard import task_boundary
from orchestry.task.setup import Setup
from orchestry.task.thinking import Thoughtful

GOLD = "gold"
"""Who wrote a gold answer."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """A policy that gives one problem's gold."""

    gold: Mapping[str, str]

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy."""
        return [[Completion(text=self.gold[one.agent], model=GOLD)] * n for one in requests]


def gold_lessons(
    setup: Setup, team: Mapping[str, Member], note: Callable[[str], None]
) -> list[Lesson]:
    """Each agent's gold answers to the problems of the config's split.

    Gold that earns less than 1.0 is left out, and `note` is told. Raises ConfigError if there is
    none.
    """
    return in_own_loop(_played(setup, team, note))


def gold_answers(
    task: BaseTask[Any], problems: Sequence[Problem]
) -> list[tuple[Problem, Mapping[str, str]]]:
    """The problems that have gold, each with its agents' actions. Raises ConfigError if there is
    none, or none that the agents could have said as they play."""
    if isinstance(task, Thoughtful):
        raise ConfigError(
            "gold answers are actions, without what agents.ROLE.infer or agents.ROLE.chain has an "
            "agent say before them: leave both out, or learn from runs"
        )
    golds = list[tuple[Problem, Mapping[str, str]]]()
    for problem in problems:
        with task_boundary(task, "gold", problem):
            if (gold := task.gold(problem)) is not None:
                golds.append((problem, gold))
    if not golds:
        raise ConfigError(
            f"task {task.name} has no gold answers on {problems[0].split}: name runs to learn from"
        )
    return golds


async def _played(
    setup: Setup, team: Mapping[str, Member], note: Callable[[str], None]
) -> list[Lesson]:
    config, golds = setup.config, gold_answers(setup.task, setup.problems)
    async with open_sandbox(config.sandbox, allow_unsafe=config.allow_unsafe_code) as sandbox:
        rate = task_rater(setup.task, Tools(sandbox))
        rollouts = (
            (Rollout(setup.task, team, _Answers(gold), rate, Chains(1)), problem)
            for problem, gold in golds
        )
        trees = await together(rollout.play(problem, 0) for rollout, problem in rollouts)
    found, poor = list[Lesson](), list[str]()
    for tree in trees:
        leaf = tree.leaves[0]
        name = leaf.trajectory.problem.id
        if leaf.total < 1.0 - 1e-9:
            poor.append(name)
            continue
        lessons = (lesson(turn, name, GOLD, 1.0) for turn in leaf.trajectory.turns)
        found += [one for one in lessons if one is not None]
    if poor:
        note(f"gold of {', '.join(poor)} earns less than 1.0 and is left out")
    if not found:
        raise ConfigError(f"no gold answer of task {config.task} earns 1.0: see `tasks check`")
    return found
