"""The train problems' gold answers, played as the team would: what each agent sees, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestry.backends.gold import GOLD, Answers
from orchestry.backends.tools import Unkept, WithTools
from orchestry.core.concurrency import together
from orchestry.core.errors import ConfigError
from orchestry.core.tools import calls_of
from orchestry.core.types import Member, Policy, Problem, Tools, Tree
from orchestry.engine.run import in_own_loop
from orchestry.ext.distil.winners import Lesson, lessons
from orchestry.rollout.rollout import Rollout, task_rater
from orchestry.rollout.schedule import Chains
from orchestry.sandbox import open_sandbox
from orchestry.task.base import BaseTask
from orchestry.task.guard import task_boundary
from orchestry.task.setup import Setup
from orchestry.task.thinking import Thoughtful


def gold_lessons(
    setup: Setup, team: Mapping[str, Member], note: Callable[[str], None]
) -> list[Lesson]:
    """Each agent's gold answers to the problems of the config's split.

    Gold that earns less than 1.0 is left out, and `note` is told. Raises ConfigError if there is
    none.
    """
    golds = gold_answers(setup.task, setup.problems)
    players = [(Answers(gold), problem, 0) for problem, gold in golds]
    found, poor = list[Lesson](), list[str]()
    for tree in in_own_loop(played(setup, team, players)):
        leaf = tree.leaves[0]
        name = leaf.trajectory.problem.id
        if leaf.total < 1.0 - 1e-9:
            poor.append(name)
            continue
        found += [one for turn in leaf.trajectory.turns for one in lessons(turn, name, GOLD, 1.0)]
    if poor:
        note(f"gold of {', '.join(poor)} earns less than 1.0 and is left out")
    if not found:
        raise ConfigError(
            f"no gold answer of task {setup.config.task} earns 1.0: see `tasks check`"
        )
    return found


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
                _check_calls(task, problem, gold)
                golds.append((problem, gold))
    if not golds:
        raise ConfigError(
            f"task {task.name} has no gold answers on {problems[0].split}: name runs to learn from"
        )
    return golds


def _check_calls(task: BaseTask[Any], problem: Problem, gold: Mapping[str, str]) -> None:
    """Raises ConfigError for gold with more calls than its agent may make, or whose calls would
    have effects."""
    for spec in task.agents:
        calls = calls_of(gold.get(spec.role))
        if len(calls) > spec.max_calls:
            raise ConfigError(
                f"gold of {problem.id} has {len(calls)} calls of {spec.role}, which may make "
                f"{spec.max_calls}: raise agents.{spec.role}.max_calls"
            )
        made = {call.name for call in calls}
        if able := [
            one.spec.name for one in spec.every_tool if one.effects and one.spec.name in made
        ]:
            raise ConfigError(
                f"gold answers are played, and {', '.join(able)} would have effects: learn from "
                "runs, or promise effects=False"
            )


async def played(
    setup: Setup, team: Mapping[str, Member], players: Sequence[tuple[Policy, Problem, int]]
) -> list[Tree[Any]]:
    """One trajectory of each problem with its seed, as the policy beside it plays it."""
    config = setup.config
    async with open_sandbox(config.sandbox, allow_unsafe=config.allow_unsafe_code) as sandbox:
        rate = task_rater(setup.task, Tools(sandbox))
        tools = Unkept(setup.task.agents, sandbox)
        rollouts = [
            Rollout(setup.task, team, WithTools(policy, tools), rate, Chains(1))
            for policy, _, _ in players
        ]
        return await together(
            rollout.play(problem, seed)
            for rollout, (_, problem, seed) in zip(rollouts, players, strict=True)
        )
