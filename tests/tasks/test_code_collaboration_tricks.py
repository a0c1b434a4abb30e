"""Only a team whose main function needs its helper cooperates; tricks earn nothing by it."""

from __future__ import annotations

import asyncio
import re
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry import Problem, Tools
from orchestry.core.types import Limits
from orchestry.sandbox import open_sandbox
from tests.tasks.cubes import CHECKED, CUBE, CUBES, HEAD, OWN, PROBLEMS, SUM, TRICKS, parts, scored

REWARD = import_module("orchestry_tasks.code_collaboration.reward")


@pytest.mark.parametrize("problem", [CUBES, CHECKED], ids=["own", "data set"])
@pytest.mark.slow
async def test_tricks_are_no_cooperation(tools: Tools, problem: Problem) -> None:
    found = (scored(tools, CUBE, main, problem) for main in TRICKS.values())
    for trick, score in zip(TRICKS, await asyncio.gather(*found), strict=True):
        assert parts(score)["cooperation"] == 0.0, trick
        assert score.total <= 0.5, trick
        assert "cooperates" not in score.tags, trick
        assert "No cooperation: " in score.feedback, trick


async def test_who_hands_on_in_another_order_is_no_partner(tools: Tools) -> None:
    """Aux does all; in the place of main it fails, since main turns its arguments round."""
    data = {"entry_point": "f", "check": "def check(candidate):\n    assert candidate(7, 2) == 5\n"}
    problem = CUBES.model_copy(update={"data": {**CHECKED.data, **data}})
    for hands_on in ("aux(b, a)", "aux(b=b, a=a) if a else aux(b=b, a=a)"):
        main = f"def f(a, b):\n    return {hands_on}"
        score = await scored(tools, "def aux(b, a):\n    return a - b", main, problem)
        assert "solved" in score.tags
        assert score.total == 0.5, hands_on


async def test_tricks_count_for_no_scheme(tools: Tools) -> None:
    """Where running shows no cooperation, what the code looks like says nothing."""
    score = await scored(tools, CUBE, TRICKS["falls back"])
    assert {tag for tag in score.tags if tag.startswith("scheme")} == {"scheme_none"}
    works = await scored(tools, CUBE, SUM)
    assert "scheme_coordinator" in works.tags
    fails = await scored(tools, "def aux(n):\n    return 0", SUM)
    assert "scheme_coordinator" in fails.tags


async def test_a_helper_that_does_it_all_is_no_cooperation(tools: Tools) -> None:
    helper = f"def aux(numbers):\n    return {OWN}"
    score = await scored(tools, helper, f"{HEAD}return aux(numbers)")
    assert parts(score) == {"structure": 1.0, "syntax": 1.0, "tests": 0.0, "cooperation": 0.0}
    assert "solved" in score.tags


@pytest.mark.parametrize(
    "body", ["return 1 * aux(numbers) + 0", "r = aux(numbers)\n    return r if r == r else 0"]
)
async def test_a_wrapper_in_disguise_is_no_cooperation(tools: Tools, body: str) -> None:
    score = await scored(tools, f"def aux(numbers):\n    return {OWN}", f"{HEAD}{body}")
    assert "solved" in score.tags
    assert parts(score)["cooperation"] == 0.0
    assert "aux alone passes as many tests" in score.feedback


@pytest.mark.parametrize("body", ["return aux(numbers)[0]", "return -aux(numbers)"])
async def test_a_wrapper_that_aux_packs_for_is_no_cooperation(tools: Tools, body: str) -> None:
    """The gold main fails with such an aux, and main with any other."""
    value = f"[{OWN}]" if "[0]" in body else f"-{OWN}"
    score = await scored(tools, f"def aux(numbers):\n    return {value}", f"{HEAD}{body}")
    assert "solved" in score.tags
    assert score.total == 0.5
    assert "No cooperation: aux is not what the problem asks for" in score.feedback


RIGHT_MAINS = {
    "sum_of_cubes": "memo = {}\n\ndef sum_of_cubes(numbers):\n    for n in numbers:\n"
    "        memo[n] = memo[n] if n in memo else aux(n)\n    return sum(memo[n] for n in numbers)",
    "common_divisor": "def common_divisor(numbers):\n    from functools import reduce\n"
    "    return reduce(aux, numbers) if numbers else 0",
    "matrix_power": "def matrix_power(matrix, n):\n    if n > 1:\n"
    "        return aux(matrix_power(matrix, n - 1), matrix)\n    size = range(len(matrix))\n"
    "    return matrix if n else [[int(i == j) for j in size] for i in size]",
    "largest_roman": "def largest_roman(numerals):\n    return max(numerals, key=aux, default='')",
    "first_to_lead": "def first_to_lead(rounds):\n    lead = 0\n    for a, b in rounds:\n"
    "        lead += aux(b=b, a=a)\n        if abs(lead) > 1:\n"
    "            return 1 if lead > 0 else 2\n    return 0",
    "all_positive": "def all_positive(numbers):\n"
    "    return len([n for n in numbers if aux(n)]) == len(numbers)",
    "pig_latin": "def pig_latin(text):\n    return ' '.join(map(aux, text.split()))",
    "armstrong_numbers": "from functools import lru_cache\n\ndef found(limit):\n"
    "    return [n for n in range(limit) if n > 0 and aux(n)]\n\n"
    "armstrong_numbers = lru_cache(found)\narmstrong_numbers = lru_cache(maxsize=9)(found)",
    "count_primes_between": "PRIMES = {n for n in range(-9, 1000) if aux(n)}\n\n"
    "def count_primes_between(low, high):\n"
    "    return sum(n in PRIMES for n in range(low, high + 1))",
    "merge_bookings": "def merge_bookings(bookings):\n    out = []\n"
    "    for one in sorted(bookings, key=lambda pair: pair[0]):\n"
    "        both = out and aux(out[-1], one)\n        if both:\n            out.pop()\n"
    "        out.append(both or one)\n    return out",
}


_PARTS = (
    "from functools import partial, wraps\n\n"
    "def total(numbers, start=0):\n    return start + sum(aux(n) for n in numbers)\n\n"
    "class Sum:\n    def solve(self, numbers):\n        return total(numbers)\n\n"
    "def outer(of):\n    def inner(numbers):\n        return sum(of(n) for n in numbers)\n"
    "    return inner\n\n"
)
BOUND = [
    "total",
    "partial(total, start=0)",
    "outer(aux)",
    "wraps(total)(lambda numbers: total(numbers))",
    "Sum().solve",
    "{'total': total}.get('total')",
]
"""How main may bind its entry point to a function that it defines under another name."""
LATER = [
    "sum(partial(aux, n)() for n in numbers)",
    "sum(one() for one in [partial(aux, n) for n in numbers])",
    "sum(map(partial(aux), numbers))",
    "outer(aux)(numbers)",
]


@pytest.mark.parametrize("main", [f"sum_of_cubes = {one}" for one in BOUND])
@pytest.mark.slow
async def test_an_entry_point_under_another_name_cooperates_in_full(
    tools: Tools, main: str
) -> None:
    score = await scored(tools, CUBE, f"{_PARTS}{main}")
    assert score.total == 1.0, score.feedback


@pytest.mark.parametrize("body", LATER)
async def test_a_main_that_calls_aux_later_cooperates_in_full(tools: Tools, body: str) -> None:
    score = await scored(tools, CUBE, f"{_PARTS}{HEAD}return {body}")
    assert score.total == 1.0, score.feedback


@pytest.mark.parametrize("name", [name for name in PROBLEMS if PROBLEMS[name].data["grade"] == 2])
@pytest.mark.slow
async def test_a_gold_main_under_another_name_cooperates_in_full(tools: Tools, name: str) -> None:
    problem = PROBLEMS[name]
    main = problem.data["gold_main"].replace(f"def {name}(", "def _impl(")
    main = re.sub(rf"\b{name}\(", "_impl(", main)
    score = await scored(tools, problem.data["gold_aux"], f"{main}\n{name} = _impl", problem)
    assert score.total == 1.0, score.feedback


@pytest.mark.parametrize("name", RIGHT_MAINS)
@pytest.mark.slow
async def test_a_main_that_is_right_in_its_own_way_cooperates_in_full(
    tools: Tools, name: str
) -> None:
    problem = PROBLEMS[name]
    score = await scored(tools, problem.data["gold_aux"], RIGHT_MAINS[name], problem)
    assert score.total == 1.0, score.feedback


async def test_an_aux_that_lacks_one_case_does_not_make_main_a_partner(tools: Tools) -> None:
    helper = f"def aux(numbers):\n    return {OWN} if numbers else None"
    main = f"{HEAD}if not numbers:\n        return 0\n    return aux(numbers)"
    score = await scored(tools, helper, main)
    assert "solved" in score.tags
    assert score.total == 0.5


async def test_a_main_that_knows_its_helpers_name_for_it_gains_nothing(tools: Tools) -> None:
    """A second name tells a stub from the helper without a call."""
    main = f"{HEAD}return {OWN} + 0 * aux(1) if aux is same else None"
    score = await scored(tools, f"{CUBE}\n\nsame = aux", main)
    assert parts(score)["cooperation"] == 0.0


@pytest.mark.slow
async def test_a_main_that_dawdles_gains_nothing(tools: Tools) -> None:
    """Where the runs with stubs have less time than the honest one had, a slow main looks as if
    it needed its helper."""
    idle = "for _ in range(2 * 10 ** 6):\n        pass\n    "
    score = await scored(tools, CUBE, f"{HEAD}{idle}return {OWN} + 0 * len(str(aux(1)))")
    assert parts(score)["cooperation"] == 0.0


async def test_the_runs_own_limits_hold_for_cooperation_too() -> None:
    """A helper that nests deeper than Python's default allows, where the run allows it."""
    deep = "def aux(n, left=1500):\n    return aux(n, left - 1) if left else n ** 3"
    async with open_sandbox(Limits(recursion=3000)) as sandbox:
        score = await scored(Tools(sandbox=sandbox), deep, SUM)
    assert score.total == 1.0


async def test_cooperation_grows_with_what_the_helper_is_needed_for(tools: Tools) -> None:
    """Main cubes small numbers by itself; the more of them, the less it needs aux."""
    found = []
    for most in (0, 2, 4, 20):
        main = f"{HEAD}return sum(n ** 3 if abs(n) < {most} else aux(n) for n in numbers)"
        found.append(parts(await scored(tools, CUBE, main))["cooperation"])
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert found[-1] == 0.0


NUMBERS = st.floats(0.0, 1.0)


@given(honest=NUMBERS, stubbed=st.lists(NUMBERS), better=NUMBERS)
def test_cooperation_falls_with_the_best_stub(
    honest: float, stubbed: list[float], better: float
) -> None:
    found = REWARD.cooperation(honest, stubbed)
    assert 0.0 <= found <= 1.0
    assert not stubbed or REWARD.cooperation(honest, [*stubbed, better]) <= found
    assert REWARD.cooperation(honest, [*stubbed, honest]) == 0.0
