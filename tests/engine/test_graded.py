"""Which answers stand before the judge, and what they are worth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestry import BaseTask, Problem, Score
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import Part, Rate, Trajectory
from orchestry.engine.graded import GradedSet, graded_set, graded_sets
from tests.toys import Duo, Words

Answers = Sequence[Mapping[str, str]]


async def by_length(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
    """Worth follows from all that was said."""
    said = [sum(len(turn.completion.text) for turn in node.turns) for node in nodes]
    return [Score(parts=(Part(name="quality", value=min(1.0, n / 100)),)) for n in said]


async def constant(nodes: Sequence[Trajectory[Any]]) -> list[Score]:
    return [Score(parts=(Part(name="quality", value=0.5),)) for _ in nodes]


class Graded(Words):
    """Words with answers for a check."""

    answers: Answers = ()

    def graded(self, problem: Problem) -> Answers:
        return self.answers


def team(writer: str, reviewer: str = "r", refactorer: str = "f") -> dict[str, str]:
    return {"writer": writer, "reviewer": reviewer, "refactorer": refactorer}


def found(*answers: Mapping[str, str], rate: Rate = by_length) -> GradedSet | None:
    task = Graded()
    task.answers = answers
    return asyncio.run(graded_set(task, task.problems("dev")[0], rate))


def texts(each: GradedSet | None) -> list[str]:
    assert each is not None
    return [child.turns[-1].completion.text for child in each.siblings.children]


def test_candidates_part_at_the_first_move_that_differs() -> None:
    each = found(team("w", "long review"), team("w", "short"), team("w", "none", "longer"))
    assert texts(each) == ["long review", "short", "none"]
    assert each is not None
    siblings = each.siblings
    assert siblings.agents == ("reviewer",)
    assert [turn.agent for turn in siblings.parent.turns] == ["writer"]
    assert each.worths_G == pytest.approx((0.13, 0.07, 0.11))
    assert all(child.score is None for child in siblings.children)


def test_different_worths_come_first_and_equal_moves_once() -> None:
    answers = [team(w) for w in ("aaa", "bbb", "cc", "d", "dddd", "eeeee", "ffffff")]
    assert texts(found(*answers)) == ["aaa", "cc", "d", "dddd"]
    assert texts(found(team("aaa"), team("bbb"), team("cc"))) == ["aaa", "cc", "bbb"]
    assert texts(found(team("a"), team("a", "other"), team("bbb"))) == ["a", "bbb"]


def test_no_difference_is_no_set() -> None:
    assert found() is None
    assert found(team("a")) is None
    assert found(team("a"), team("b")) is None
    assert found(team("a"), team("bb"), rate=constant) is None
    assert found(team("w", "a", "xx"), team("w", "b", "xx")) is None


def test_joint_actions_are_one_move() -> None:
    class Graded(Duo):
        def graded(self, problem: Problem) -> Answers:
            return [{"left": "a", "right": "a"}, {"left": "a", "right": "bbb"}]

    each = asyncio.run(graded_set(Graded(), Duo().problems("dev")[0], by_length))
    assert each is not None
    assert each.siblings.agents == ("left", "right")
    assert [len(child.turns) for child in each.siblings.children] == [2, 2]


def test_an_answer_for_some_agents_only_is_the_tasks_fault() -> None:
    with pytest.raises(TaskError, match="without a text for agent 'refactorer' on problem dev-0"):
        found({"writer": "a", "reviewer": "b"})


def test_seeds_choose_problems_and_more_begin_with_fewer() -> None:
    task = Graded()
    task.answers = [team("a"), team("bb")]

    def names(seed: int, wanted: int) -> list[str]:
        sets = asyncio.run(graded_sets(task, seed, wanted, by_length))
        return [each.siblings.parent.problem.id for each in sets]

    assert names(1, 2) == names(1, 5)[:2]
    assert len({tuple(names(seed, 2)) for seed in range(8)}) > 3
    assert sorted(names(3, 99)) == sorted(f"{s}-{n}" for s in ("train", "dev") for n in range(3))


def test_a_task_without_known_worth_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task words has no answers.*gold\(problem\)"):
        asyncio.run(graded_sets(Words(), 0, 3, by_length))


# --- what a task offers by itself -----------------------------------------------------------------


class Golden(Words):
    """A task that only knows its gold."""

    def gold(self, problem: Problem) -> Mapping[str, str]:
        return dict.fromkeys(("writer", "reviewer", "refactorer"), f"gold of {problem.id}!")


def test_gold_is_spoilt_in_three_ways() -> None:
    task: BaseTask[Any] = Golden()
    problem = task.problems("dev")[1]
    said = [answer["writer"] for answer in task.graded(problem)]
    assert said == ["gold of dev-1!", "gold of", "gold of dev-0!", ""]
    assert all(answer.keys() == task.graded(problem)[0].keys() for answer in task.graded(problem))


def test_no_gold_is_no_answer() -> None:
    assert Words().graded(Words().problems("dev")[0]) == ()
