"""Gold answers: what a task itself would have its agents say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry.core.errors import TaskFault
from orchestry.core.seeds import shuffled
from orchestry.core.tools import calls_of
from orchestry.core.types import Completion, Member, Rate, Request
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.schedule import Chains
from orchestry.task.base import BaseTask
from orchestry.task.guard import task_boundary
from orchestry.task.thinking import Thoughtful

GOLD = "gold"
"""Who wrote a gold answer."""
LOOKED_AT = 20
"""Train problems, at most, of which gold is asked at a time."""


@dataclass(frozen=True, slots=True)
class Answers:
    """A policy that gives one problem's gold; of an action with calls, one call after the other."""

    gold: Mapping[str, str]

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy."""
        return [[self._next(one)] * n for one in requests]

    def _next(self, request: Request) -> Completion:
        said = self.gold[request.agent]
        made = sum(len(message.calls) for message in request.messages)
        if calls := calls_of(said)[made : made + 1]:
            return Completion(text="", calls=calls, model=GOLD, stop="calls")
        return Completion(text=str(said), model=GOLD)


@dataclass(frozen=True, slots=True)
class Move:
    """One agent's gold answer, and the last that it saw before."""

    agent: str
    problem: str
    saw: str
    answered: str


async def gold_moves(
    task: BaseTask[Any], team: Mapping[str, Member], rate: Rate, seed: int, count: int
) -> list[Move]:
    """The agents' moves in the gold of `count` train problems, drawn by the seed, that earns 1.0;
    fewer where few have any. Gold of a part of the team or with calls of tools is left out, as is
    that of agents who think before they answer, whose thoughts nobody wrote."""
    found, roles = list[Move](), {spec.role for spec in task.agents}
    problems = () if isinstance(task, Thoughtful) else task.problems("train")
    for number in shuffled(len(problems), seed, "gold")[:LOOKED_AT]:
        problem = problems[number]
        try:
            with task_boundary(task, "gold", problem):
                gold = task.gold(problem)
        except TaskFault:  # `tasks check` tells; a run that only tries gold goes on
            continue
        if gold is None or roles - gold.keys() or any(map(calls_of, gold.values())):
            continue
        tree = await Rollout(task, team, Answers(gold), rate, Chains(1)).play(problem, 0)
        for leaf in tree.leaves:
            if leaf.total > 1.0 - 1e-9:
                count -= 1
                found += [
                    Move(turn.agent, problem.id, turn.messages[-1].content, turn.completion.text)
                    for turn in leaf.trajectory.turns
                ]
        if count <= 0:
            break
    return found
