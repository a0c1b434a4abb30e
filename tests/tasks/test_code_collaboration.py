"""Gold is worth 1, the task keeps its contract on either bank, and any text is scored."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestry import Problem, Tools
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS
from orchestry.task.check import HOSTILE, check_task
from orchestry.task.registry import load_task
from tests.tasks.cubes import (
    CUBE,
    CUBES,
    HEAD,
    OWN,
    PROBLEMS,
    SUM,
    TASK,
    TRICKS,
    after,
    block,
    parts,
    scored,
    task,
)

REWARD = import_module("orchestry_tasks.code_collaboration.reward")
PROGRAM = import_module("orchestry_tasks.code_collaboration.program")
USAGE = import_module("orchestry_tasks.code_collaboration.usage")
NAMED = {one.id: one for split in SPLITS for one in task(bank="named").problems(split)}
FIXTURES = Path(__file__).parents[1] / "fixtures" / "humaneval"


async def gold_is_worth_one(problem: Problem, tools: Tools) -> None:
    gold, *others = [
        await TASK.evaluate(TASK.step(TASK.reset(problem, 0), answer), tools)
        for answer in TASK.graded(problem)
    ]
    assert parts(gold) == dict.fromkeys(TASK.weights, 1.0)
    assert {"solved", "cooperates"} <= set(gold.tags)
    totals = [score.total for score in others]
    assert totals[:2] == [0.5, 0.5]  # aux in main's own code; all work in aux
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0.0
    assert not any("cooperates" in score.tags for score in others)


@pytest.mark.parametrize("name", ["newest_version", "count_primes_between", "total_gap"])
async def test_gold_is_worth_one_and_teams_that_do_not_cooperate_less(
    tools: Tools, name: str
) -> None:
    await gold_is_worth_one(PROBLEMS[name], tools)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
async def test_all_gold_is_worth_one(tools: Tools, name: str) -> None:
    await gold_is_worth_one(PROBLEMS[name], tools)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
async def test_the_named_bank_is_worth_one(tools: Tools, name: str) -> None:
    await gold_is_worth_one(NAMED[name], tools)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"acting": "sequential", "turns": 2}, {"turns": 3, "feedback": "levels"}]
)
async def test_the_task_keeps_the_contract(tools: Tools, options: Mapping[str, Any]) -> None:
    findings = await check_task(task(**options), tools.sandbox)
    assert [finding for finding in findings if not finding.ok] == []


async def test_a_data_set_is_played_like_the_own_bank(tools: Tools) -> None:
    loaded = task(bank="humaneval", path=str(FIXTURES / "humaneval.jsonl"))
    problems = [problem for split in SPLITS for problem in loaded.problems(split)]
    assert problems
    for problem in problems:
        state = loaded.reset(problem, 0)
        assert problem.data["signature"] in loaded.observe(state, "main")
        assert problem.data["aux_signature"] in loaded.observe(state, "helper")
        assert loaded.gold(problem) is None
        assert loaded.graded(problem) == []
        score = await scored(tools, "", problem.data["reference"], problem)
        assert parts(score) == {"structure": 0.5, "syntax": 0.5, "tests": 0.0, "cooperation": 0.0}
        assert "solved" in score.tags


async def test_weights_come_from_the_config(tools: Tools) -> None:
    only = load_task("code_collaboration", weights=dict.fromkeys(("structure", "syntax"), 0.0))
    for main, total in ((SUM, 1.0), (f"{HEAD}return {OWN}", 0.0)):
        assert (await only.evaluate(after(block(CUBE), block(main)), tools)).total == total
    with pytest.raises(ConfigError, match=r"coop"):
        load_task("code_collaboration", weights={"coop": 1.0})


@pytest.mark.parametrize(
    "wrong", [{"turns": 0}, {"turns": "many"}, {"acting": "both"}, {"feedback": "all"}, {"turn": 2}]
)
def test_wrong_options_are_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}"):
        task(**wrong)


def test_equal_code_is_an_equal_state_whatever_was_said_around_it() -> None:
    assert after(block(CUBE), SUM) == after(f"Sure!\n{CUBE}", block(SUM))
    assert replace(after(CUBE, SUM), results=("told",)) != after(CUBE, SUM)
    assert [*chain.from_iterable(after(CUBE, SUM).codes)] == ["helper", CUBE, "main", SUM]


UNWRITABLE = {
    "digits": f"0x{'f' * 6000}",
    "deep": "1" + "+1" * 1500,
    "nested": "-" * 1200 + "1",
    "attributes": "x" + ".a" * 1500,
}
"""What Python reads and can't write down again: each in a default, a call and a return."""
HEADS = (f"{HEAD}return aux(numbers) + ", "def aux(n, of=", "import aux\naux = aux.", "aux(")
CODES = st.one_of(
    st.text(),
    st.text("()[]{}:=\n \t'\"`#*defrtunaxlmb_0\\", max_size=80),
    st.sampled_from([*HOSTILE, CUBE, SUM, *TRICKS.values()]),
    st.sampled_from([f"{head}{odd}" for head in HEADS for odd in UNWRITABLE.values()]),
    st.sampled_from(["(" * 9999, "-" * 99999 + "1", "x" + "+1" * 9999, "def aux(a, *, b): pass"]),
)


@pytest.fixture(params=[1000, 2000])
def recursion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python's own limit, and what torch's compiler raises it to for the rest of the process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("acting", ["sequential", "joint"])
@pytest.mark.parametrize("what", UNWRITABLE)
@pytest.mark.usefixtures("recursion")
@pytest.mark.slow
async def test_code_that_python_cannot_write_is_scored(
    tools: Tools, what: str, acting: str
) -> None:
    odd, played = UNWRITABLE[what], task(acting=acting)
    codes = [f"def aux(n={odd}):\n    return n", f"def aux(n):\n    return n + ({odd})", CUBE]
    mains = [
        f"{HEAD}return aux(numbers) + ({odd})",
        f"{HEAD}({odd}).aux(numbers)\n    return aux({odd})",
        f"def aux(n={odd}):\n    return n\n\n{SUM}",
    ]
    for helper, main in zip(codes, mains, strict=True):
        state = played.reset(CUBES, 0)
        while roles := played.to_act(state):
            said = {"helper": block(helper), "main": block(main)}
            state = played.step(state, {role: said[role] for role in roles})
        assert (await played.evaluate(state, tools)).total <= 0.5


@settings(max_examples=100, deadline=None)
@given(helper=CODES, main=CODES)
@pytest.mark.slow
def test_any_text_has_pure_parts_in_range(helper: str, main: str) -> None:
    program = after(helper, main).program
    for value in (REWARD.structure([program], "sum_of_cubes"), REWARD.syntax([program])):
        assert value in (0.0, 0.5, 1.0)
    usage = USAGE.usage_of(program.main, "sum_of_cubes")
    assert isinstance(REWARD.objection(program, "sum_of_cubes", usage), str)
    assert isinstance(PROGRAM.without_promise(main, helper), str)
    assert all(isinstance(text, str) for text in program.stubbed())


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(helper=CODES, main=CODES)
async def test_any_text_is_scored(tools: Tools, helper: str, main: str) -> None:
    score = await TASK.evaluate(after(helper, main), tools)
    assert 0.0 <= score.total <= 1.0
    assert all(0.0 <= part.value <= 1.0 for part in score.parts)
