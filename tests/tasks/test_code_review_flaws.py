"""The bugs that code_review offers for a judge's check are real, one each, and nothing else."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import BaseTask, Problem, Tools, Transcript
from orchestry.core.types import Limits, Split
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task

TASK: BaseTask[Transcript] = load_task("code_review")
FLAWS = import_module("orchestry_tasks.code_review.flaws")
SPLITS: tuple[Split, ...] = ("train", "dev")
PROBLEMS = {problem.id: problem for split in SPLITS for problem in TASK.problems(split)}
ALL = 1000


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("return a < b", "return a <= b"),
        ("return a not in b", "return a in b"),
        ("return a[1]", "return a[2]"),
        ("return a[1]", "return a[0]"),
        ("return a % 2", "return a // 2"),
        ("return a and b", "return a or b"),
        ("return not a", "return a"),
        ("return f(a, b)", "return f(b, a)"),
        ("return range(a)", "return range(a - 1)"),
        ("return range(1, a)", "return range(1, a - 1)"),
        ("return len(set(a))", "return len(a)"),
        ("return a.strip()", "return a"),
        ("return max(a)", "return min(a)"),
        ("return a.lower()", "return a.upper()"),
        ("return a[1:b]", "return a[1:]"),
        ("return a[1:b]", "return a[:b]"),
        ("return a", "a"),
        ("return a if b else c", "return a"),
        ("return [x for x in a if x]", "return [x for x in a]"),
    ],
)
def test_each_kind_of_slip(good: str, bad: str) -> None:
    head = "def f(a, b):\n    "
    assert head + bad in FLAWS.flaws(head + good, "seed", ALL)


def test_slips_in_statements() -> None:
    code = "def f(a):\n    if a:\n        a += 1\n    else:\n        a = 2\n    return a"
    found = FLAWS.flaws(code, "seed", ALL)
    assert "def f(a):\n    pass\n    return a" in found
    assert code.replace("\n    else:\n        a = 2", "") in found
    assert code.replace("a += 1", "a = 1") in found


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_flaws_are_code_of_one_layout_and_all_different(problem: Problem) -> None:
    reference = problem.data["reference"]
    found = FLAWS.flaws(reference, "seed", ALL)
    assert found
    assert FLAWS.plain(reference) not in found
    assert len(set(found)) == len(found)
    assert all(FLAWS.plain(code) == code for code in found)


@settings(max_examples=20, deadline=None)
@given(seed=st.text(), count=st.integers(0, 12))
def test_a_seed_chooses_among_the_same_flaws(seed: str, count: int) -> None:
    code = "def f(a, b):\n    return [x for x in a[1:b] if x < max(a, b) + 2 and not x % 3]"
    found = FLAWS.flaws(code, seed, count)
    assert found == FLAWS.flaws(code, seed, count)
    assert len(found) == count
    assert set(found) <= set(FLAWS.flaws(code, "another", ALL))


def test_kinds_take_turns_and_loops_come_last() -> None:
    code = "def f(a):\n    while a > 3:\n        a = a - 1\n    return a < 5"
    found = FLAWS.flaws(code, "seed", ALL)
    in_loop = [ast.unparse(ast.parse(c).body[0].body[0]) != LOOP for c in found]
    assert in_loop == sorted(in_loop)
    assert set(in_loop) == {True, False}


LOOP = "while a > 3:\n    a = a - 1"


async def test_the_first_graded_answer_is_right_and_others_are_not() -> None:
    async with open_sandbox(Limits()) as sandbox:
        for name in ("is_even", "move_zeros", "roman_to_int"):
            problem = PROBLEMS[name]
            answers = TASK.graded(problem)
            totals = []
            for answer in answers:
                state = TASK.reset(problem, 0)
                while actors := TASK.to_act(state):
                    state = TASK.step(state, {agent: answer[agent] for agent in actors})
                totals.append((await TASK.evaluate(state, Tools(sandbox))).total)
            assert totals[0] == 1.0
            assert min(totals) < 0.5
            assert len(set(totals)) >= 4
