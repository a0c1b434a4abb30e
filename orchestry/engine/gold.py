"""The train problems' gold answers, played as the team would: what each agent sees, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestry.core.concurrency import together
from orchestry.core.errors import ConfigError
from orchestry.core.types import Completion, Problem, Request, Tools
from orchestry.engine.plan import Plan
from orchestry.engine.run import in_own_loop
from orchestry.engine.winners import Lesson, lesson
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.task.guard import task_boundary

GOLD = "gold"
"""Who wrote a gold answer."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """A policy that gives one problem's gold."""

    gold: Mapping[str, str]

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy."""
        return [[Completion(text=self.gold[one.agent], model=GOLD)] * n for one in requests]


def gold_lessons(plan: Plan, note: Callable[[str], None]) -> list[Lesson]:
    """Each agent's gold answers to the problems of the plan's split. Gold that earns less than 1.0
    is left out, and `note` is told. Raises ConfigError if there is none."""
    return in_own_loop(_played(plan, note))


async def _played(plan: Plan, note: Callable[[str], None]) -> list[Lesson]:
    config, golds = plan.config, list[tuple[Problem, Mapping[str, str]]]()
    for problem in plan.problems:
        with task_boundary(plan.task, "gold", problem):
            if (gold := plan.task.gold(problem)) is not None:
                golds.append((problem, gold))
    if not golds:
        raise ConfigError(
            f"task {config.task} has no gold answers on {config.split}: name runs to learn from"
        )
    async with open_sandbox(config.sandbox, allow_unsafe=config.allow_unsafe_code) as sandbox:
        rate = task_rater(plan.task, Tools(sandbox))
        team = plan.backend.team(plan.task)
        rollouts = (
            (Rollout(plan.task, team, _Answers(gold), rate, Chains(1)), problem)
            for problem, gold in golds
        )
        trees = await together(rollout.play(problem, 0) for rollout, problem in rollouts)
    found, poor = list[Lesson](), list[str]()
    for tree in trees:
        leaf = tree.leaves[0]
        if leaf.total < 1.0 - 1e-9:
            poor.append(leaf.trajectory.problem.id)
            continue
        lessons = (lesson(turn, leaf.trajectory.problem.id) for turn in leaf.trajectory.turns)
        found += [one for one in lessons if one is not None]
    if poor:
        note(f"gold of {', '.join(poor)} earns less than 1.0 and is left out")
    if not found:
        raise ConfigError(f"no gold answer of task {config.task} earns 1.0: see `tasks check`")
    return found
