"""Tests count beyond a constant answer; what failed is told without right answers or code."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import pytest

from orchestry import Tools
from orchestry.core.errors import TaskError
from orchestry.core.types import CallResult
from tests.tasks.cubes import CUBE, CUBES, HEAD, OWN, SUM, parts, scored

OUTCOME = import_module("orchestry_tasks.code_collaboration.outcome")


async def test_two_empty_functions_earn_half(tools: Tools) -> None:
    score = await scored(tools, "def aux(n):\n    pass", f"{HEAD}pass")
    assert parts(score) == {"structure": 1.0, "syntax": 1.0, "tests": 0.0, "cooperation": 0.0}


async def test_constants_pass_no_tests(tools: Tools) -> None:
    for value in ("0", "27", "8", "None", "True"):
        score = await scored(tools, CUBE, f"{HEAD}return {value}")
        assert parts(score)["tests"] == 0.0


async def test_what_was_taken_is_in_the_feedback_and_no_right_answer_is(tools: Tools) -> None:
    score = await scored(tools, CUBE, f"{HEAD}return 5 + sum(aux(n) for n in numbers)")
    told, *taken = score.feedback.split("\n\n")
    assert "The program passes 0 of 11 tests." in told
    assert "First failure: sum_of_cubes([]) wrongly returned 5." in told
    assert f"Code taken from helper:\n{CUBE}" in taken
    assert "It works" not in score.feedback


CHECKED = """
def check(candidate):
    assert candidate([]) == 0, "empty (list)"
    assert candidate([3]) == 27
    assert candidate([1, -1, 4]) == 64
    assert candidate([2, 2]) == 16
"""


async def test_a_data_sets_own_test_is_run_and_its_asserts_are_told_to_nobody(
    tools: Tools,
) -> None:
    data = {key: CUBES.data[key] for key in ("entry_point", "signature", "gold_main", "gold_aux")}
    problem = CUBES.model_copy(update={"data": {**data, "check": CHECKED}})
    gold = await scored(tools, CUBE, SUM, problem)
    assert (gold.total, "solved" in gold.tags) == (1.0, True)
    empty = await scored(tools, CUBE, f"{HEAD}return 0", problem)
    assert parts(empty)["tests"] == 0.0  # which is what a constant passes
    assert "sum_of_cubes([3]) returned a wrong value" in empty.feedback
    assert "27" not in empty.feedback
    broken = await scored(tools, "def aux(n):\n    raise KeyError(n)", SUM, problem)
    assert "sum_of_cubes([3]) failed: KeyError." in broken.feedback
    alone = await scored(tools, CUBE, f"{HEAD}aux(1)\n    return {OWN}", problem)
    assert parts(alone)["cooperation"] == 0.0


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("not so: assert candidate(')(', [1]) == 'x'", "f(')(', [1]) returned a wrong value"),
        (
            "assert abs(candidate(2) - 4) < 1: the candidate gave no value: E: a\nb",
            "f(2) failed: an exception",
        ),
        (
            "assert candidate(2): the candidate gave no value: no answer after 1 s of CPU time",
            "f(2) failed: no answer in time",
        ),
        ("not so: assert total == 4", "f returned a wrong value"),
        ("not so: assert candidate(", "f returned a wrong value"),
    ],
)
def test_a_failed_assert_is_told_without_what_is_right(why: str, said: str) -> None:
    assert OUTCOME.unasserted("f", why) == said


def test_a_result_never_shows_the_others_code_by_way_of_an_error() -> None:
    trace = "ValueError: no\nline 2, in aux: return secret_of_helper(n)"
    assert OUTCOME.plain("error", trace) == "ValueError"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("raise ValueError('psst')", "ValueError"),
        ("raise type('psst', (Exception,), {})", "an exception"),
        ("raise type('no answer: psst', (Exception,), {})", "an exception"),
        ("raise MemoryError('psst')", "not enough memory"),
        ("while True:\n        pass", "no answer in time"),
        ("return 'psst' * 10 ** 6", "it returned too much"),
        ("return object()", "it returned what can't be compared"),
        ("return 1 / 0", "ZeroDivisionError"),
        ("import os; os._exit(3)", "it ended its process"),
    ],
)
@pytest.mark.slow
async def test_an_exception_passes_no_word_between_the_agents(
    tools: Tools, raised: str, told: str
) -> None:
    main = f"{HEAD}return [aux(n) for n in [1, *numbers]]"
    score = await scored(tools, f"def aux(n):\n    {raised}", main)
    first, *_ = score.feedback.split("\n\n")
    assert first.endswith(f"First failure: sum_of_cubes([]) failed: {told}.")
    assert "psst" not in first
    assert "First failure in full: " in score.feedback
    assert "line" not in first


async def test_a_reference_is_not_taken_from_a_busy_moment(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    partners = import_module("orchestry_tasks.code_collaboration.partners")
    monkeypatch.setattr(partners, "_KNOWN", {})
    late = [CallResult("timeout", why="no answer in time")]

    class Busy:
        """A sandbox that is late with what the gold main asks, so many times."""

        def __init__(self, times: int) -> None:
            self.times = times

        async def run(self, code: str, entry_point: str, *rest: Any) -> list[CallResult]:
            if entry_point == "recorded" and self.times:
                self.times -= 1
                return late
            return await tools.sandbox.run(code, entry_point, *rest)

    with pytest.raises(TaskError, match="the gold pair of problem sum_of_cubes fails here"):
        await scored(Tools(sandbox=cast("Any", Busy(3))), CUBE, SUM)
    assert (await scored(Tools(sandbox=cast("Any", Busy(2))), CUBE, SUM)).total == 1.0
