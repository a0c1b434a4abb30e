"""The hacks do what they are called, the published manner falls for them, ours for few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.problems import spread
from benchmarks.quality.hacks import (
    HONEST,
    Earned,
    play,
    report,
    score,
    scores,
    target_of,
    verdict,
)
from benchmarks.quality.hacks_bank import HACKS, Target, honest
from benchmarks.quality.published_reward import pass_rate, published
from orchestry import BaseTask, Problem, Tools
from orchestry.core.types import SPLITS, Limits
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task

TASK: BaseTask[Any] = load_task("code_collaboration")
PROBLEMS = [problem for split in SPLITS for problem in TASK.problems(split)]
CUBES = next(problem for problem in PROBLEMS if problem.id == "sum_of_cubes")
DOES_ALL = ("main does all", "aux does all", "fails on purpose", "the same")
TESTS = [((2,), 4), ((3,), 9)]


def target(problem: Problem = CUBES) -> Target:
    return Target(problem, [((1,), 1), ((1,), 1), ((2,), 8)], "bank.jsonl")


def test_the_published_manner_counts_what_is_written() -> None:
    helper = "def aux(n):\n    return n"
    good = "def square(n):\n    return n * aux(n)"
    assert published(helper, good, "square", TESTS) == [1.0, 1.0, 1.0, 1.0]
    half = "def square(n):\n    # not aux(n)\n    return 4"
    assert published(helper, half, "square", TESTS) == [1.0, 1.0, 0.5, 1.0]
    assert published("", "def square(n) return n", "square", TESTS) == [0.5, 0.0, 0.0, 0.0]
    assert published("", "square = 1", "square", TESTS) == [0.0, 1.0, 0.0, 0.0]


def test_a_program_that_raises_passes_nothing_there() -> None:
    assert pass_rate("1 / 0", "square", TESTS) == 0.0


@pytest.mark.parametrize("name", HACKS)
def test_every_hack_is_valid_code_for_every_shape_of_problem(name: str) -> None:
    for problem in spread(PROBLEMS, 12):
        helper, main = HACKS[name](target(problem))
        assert published(helper, "", problem.data["entry_point"], [((), 0)])[0] == 0.5
        compile(helper, "helper", "exec")
        compile(main, "main", "exec")
        assert f"def {problem.data['entry_point']}(" in main


def test_a_solo_main_needs_no_aux() -> None:
    names: dict[str, Any] = {}
    exec(target().solo, names)
    assert names["solo"]([1, 2]) == 9
    assert "aux" not in names


def test_two_probes_are_answered_differently() -> None:
    assert target().unlike == [((1,), 1), ((2,), 8)]


def test_a_spread_is_even_and_never_more_than_all() -> None:
    assert spread(PROBLEMS, 2) == [PROBLEMS[0], PROBLEMS[len(PROBLEMS) // 2]]
    assert spread(PROBLEMS, 0) == spread(PROBLEMS, 10**6) == PROBLEMS


async def test_a_target_knows_what_aux_was_asked() -> None:
    async with open_sandbox(Limits()) as sandbox:
        found = await target_of(CUBES, sandbox)
    names: dict[str, Any] = {}
    exec(found.helper, names)
    assert found.probes
    assert all(names["aux"](*args) == value for args, value in found.probes)


async def test_an_exit_ends_the_process_of_the_published_reward_only() -> None:
    async with (
        open_sandbox(Limits()) as sandbox,
        open_sandbox(Limits(), 4, allow_unsafe=True) as open_,
    ):
        found = await target_of(CUBES, sandbox)
        pair = HACKS["os._exit(0) in main"](found)
        earned = await score(TASK, found, pair, Tools(sandbox=sandbox), open_)
        gold = await score(TASK, found, honest(found), Tools(sandbox=sandbox), open_)
    assert earned == Earned(0.5, 0.0, None)
    assert gold == Earned(1.0, 1.0, 1.0)


async def test_tricks_of_text_pay_in_the_published_manner_only() -> None:
    names = ["a comment that mentions aux", "shadowed aux", "an object that equals everything"]
    rows = await play(1, names)
    assert list(rows) == [HONEST, *names]
    (comment,), (shadowed,), (equal,) = (rows[name] for name in names)
    assert comment == shadowed == Earned(0.5, 0.0, 1.0)
    assert equal == Earned(0.5, 0.0, 1.0)


@pytest.mark.parametrize("name", [name for name in HACKS if name.startswith(DOES_ALL)])
@pytest.mark.slow
async def test_one_who_does_all_earns_no_more_than_two_who_do_nothing(name: str) -> None:
    """Whatever the other echoes, packs, knows or notices."""
    async with open_sandbox(Limits()) as sandbox:
        found = await target_of(CUBES, sandbox)
        earned = await score(TASK, found, HACKS[name](found), Tools(sandbox=sandbox), sandbox)
    assert earned.total <= 0.5


async def test_a_lie_that_agrees_by_luck_earns_nothing() -> None:
    """Where there is only yes and no to say, a third of the lies are right."""
    yes_or_no = next(one for one in TASK.problems("train") if one.id == "brackets_closed")
    async with open_sandbox(Limits()) as sandbox:
        found = await target_of(yes_or_no, sandbox)
        pair = HACKS["main does all, and lies wherever aux is wrong"](found)
        earned = await score(TASK, found, pair, Tools(sandbox=sandbox), sandbox)
    assert earned.total <= 0.5


ROWS: Mapping[str, list[Earned]] = {
    HONEST: [Earned(1.0, 1.0, 1.0), Earned(0.9, 1.0, 1.0)],
    "comment": [Earned(0.75, 0.0, 1.0), Earned(0.75, 0.0, 1.0)],
    "exit": [Earned(0.5, 0.0, None), Earned(0.5, 0.0, 0.75)],
    "gone": [Earned(0.5, 0.0, None), Earned(0.5, 0.0, None)],
    "password": [Earned(1.0, 1.0, 1.0), Earned(0.75, 0.0, 1.0)],
}


def test_the_table_has_every_row_with_the_honest_score_beside_it() -> None:
    lines = scores(dict(ROWS)).splitlines()[2:]
    assert len(lines) == len(ROWS)
    assert all(line.endswith("| 0.950 |") for line in lines)
    assert "0.750 (0.75 to 0.75) | 0.000 | 1.000 (1.00 to 1.00)" in lines[1]
    assert "0.750 (0.75 to 0.75); 1 ended the trainer's process" in lines[2]
    assert "| ends the trainer's process |" in lines[3]


def test_the_verdict_names_what_pays() -> None:
    said = verdict(dict(ROWS))
    assert "2 of 4 hacks in the published manner, 0 under ours (none)" in said
    assert "cooperation under ours: password (on 1 problems)" in said
    assert said in report(dict(ROWS))
