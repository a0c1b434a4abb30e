"""Answers with known scores, on which a judge is measured, as siblings of one move.

The task names answers (`BaseTask.graded`). They are played, and the task's own `evaluate` scores
each play. The judge sees the move at which the plays differ, without their scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry.core.concurrency import together
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.seeds import derive, shuffled
from orchestry.core.tools import calls_of
from orchestry.core.types import (
    ROOT,
    Completion,
    Problem,
    Rate,
    Siblings,
    Split,
    Step,
    Trajectory,
    Turn,
)
from orchestry.task.base import BaseTask
from orchestry.task.guard import Play, task_boundary

_SPLITS: tuple[Split, ...] = ("train", "dev")
"""The test split is not used."""
_SIZE = 4
"""Candidates per problem: the default number of siblings in a search."""
_AT_ONCE = 4
"""Problems whose answers are scored at the same time."""
Way = Sequence[Trajectory[Any]]
"""A play, stage by stage, the first state included."""


@dataclass(frozen=True, slots=True)
class GradedSet:
    """The candidates of one problem: siblings without scores, and their true scores."""

    siblings: Siblings[Any]
    worths_G: tuple[float, ...]


async def graded_sets(
    task: BaseTask[Any],
    seed: int,
    wanted: int,
    rate: Rate,
    on_set: Callable[[], None] = lambda: None,
) -> list[GradedSet]:
    """One set per problem, for `wanted` problems of train and dev in seeded order; fewer if the
    task has fewer.

    A problem is skipped if all its answers have the same score. A larger `wanted` with the same
    seed begins with the same sets. Raises ConfigError if there is no set.
    """
    problems = [problem for split in _SPLITS for problem in task.problems(split)]
    order = shuffled(len(problems), seed, "judge check")
    found: list[GradedSet] = []
    while order and len(found) < wanted:
        count = min(_AT_ONCE, wanted - len(found))
        batch, order = order[:count], order[count:]
        sets = await together(graded_set(task, problems[i], rate) for i in batch)
        for each in sets:
            if each is not None:
                found.append(each)
                on_set()
    if not found:
        raise ConfigError(
            f"task {task.name} has no answers of different scores to measure a judge on: give it "
            "gold(problem), or graded(problem) with answers that score differently"
        )
    return found


async def graded_set(task: BaseTask[Any], problem: Problem, rate: Rate) -> GradedSet | None:
    """At most _SIZE candidates, with as many different scores as possible; None if all tie."""
    with task_boundary(task, "graded", problem):
        answers = tuple(task.graded(problem))
    ways: list[tuple[Way, float]] = []
    for index, answer in enumerate(answers):
        way = play(task, problem, answer, index)
        (score,) = await rate([way[-1]])
        ways.append((way, score.total))
        if len({worth for _, worth in ways}) == _SIZE:  # the rest need not be run
            break
    return _as_siblings(_chosen(ways))


def play(
    task: BaseTask[Any], problem: Problem, answers: Mapping[str, str], index: int
) -> list[Trajectory[Any]]:
    """The play in which every agent gives its answer whenever it acts."""
    seed = derive("judge check", problem.id)
    with task_boundary(task, "reset", problem):
        way: list[Trajectory[Any]] = [Trajectory(ROOT, problem, seed, task.reset(problem, seed))]
    play = Play(task, problem, way[0].state, lambda agent: _said(task, problem, answers, agent))
    for texts in play:
        turns = [
            Turn(agent=agent, messages=(), completion=_completed(text))
            for agent, text in texts.items()
        ]
        way.append(way[-1].extend(index, play.state, turns))
    return way


def _completed(action: str) -> Completion:
    """The answer whose action is given; the results of its calls are not known."""
    alone = Completion(text=str(action), model="graded")
    if not (calls := calls_of(action)):
        return alone
    asking = Completion(text="", model="graded", calls=calls)
    return alone.model_copy(update={"steps": (Step(said=asking, results=("",) * len(calls)),)})


def _said(task: BaseTask[Any], problem: Problem, answers: Mapping[str, str], agent: str) -> str:
    if agent not in answers:
        raise TaskError(
            f"task {task.name}: graded has an answer without a text for agent '{agent}' on problem "
            f"{problem.id}: give every agent one"
        )
    return answers[agent]


def _chosen(ways: Sequence[tuple[Way, float]]) -> list[tuple[Way, float]]:
    """The first answer of each score, then others that tie with them."""
    firsts = {worth: place for place, (_, worth) in reversed(list(enumerate(ways)))}
    places = sorted(firsts.values())
    places += [place for place in range(len(ways)) if place not in places]
    return [ways[place] for place in places[:_SIZE]]


def _as_siblings(ways: Sequence[tuple[Way, float]]) -> GradedSet | None:
    """The children of the state at which the plays differ; of equal moves only the first."""
    shortest = min((len(way) for way, _ in ways), default=0)
    for stage in range(1, shortest):
        moves: dict[tuple[str, ...], tuple[Way, float]] = {}
        for way, worth in ways:
            texts = tuple(turn.completion.action for turn in way[stage].turns)
            moves.setdefault(texts, (way, worth))
        if len({worth for _, worth in moves.values()}) > 1:
            parent = ways[0][0][stage - 1]
            children = tuple(way[stage] for way, _ in moves.values())
            movers = tuple(turn.agent for turn in children[0].turns[len(parent.turns) :])
            siblings = Siblings(parent, movers, children, ended=frozenset())
            return GradedSet(siblings, tuple(worth for _, worth in moves.values()))
        if len(moves) > 1:  # plays of different score have equal moves here
            return None
    return None
