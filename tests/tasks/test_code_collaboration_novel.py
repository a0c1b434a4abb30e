"""Ways of working with aux that none of the four schemes covers are told apart by structure."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from orchestry import Problem, Tools
from orchestry.task.registry import load_task
from tests.tasks.cooperation_programs import COORDINATOR, DECORATOR, FALLBACK, FILTER, NONE
from tests.tasks.cubes import CUBE, CUBES, scored

load_task("code_collaboration")  # makes the package that its modules load below
usage_of = import_module("orchestry_tasks.code_collaboration.usage").usage_of


def novel(code: str) -> Any:
    return usage_of(code, "f").novel


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return aux(aux(x))", "chained"),
        ("r = aux(x)\n    return aux(r + 1)", "chained"),
        ("return aux(x) == aux(y)", "compared"),
        ("a = aux(x)\n    b = aux(y)\n    return a - b", "computed"),
        ("return aux(x) and not aux(y)", "decided"),
        ("return [aux(x), aux(y)]", "collected"),
        ("return max(aux(x), aux(y))", "handed_on"),
        ("a, b = aux(x), aux(y)\n    return a * (b > a)", "compared_computed_collected"),
        ("if x:\n        return aux(x) + 1\n    return aux(y)", "apart"),
        ("return g(x) - g(y)\n\ndef g(z):\n    return aux(z) + 1", "computed"),
        ("return aux(x) + 1", ""),
        ("if not x:\n        return 0\n    return aux(x)", ""),
        ("return [aux(y) + aux(-y) for y in x]", ""),
    ],
)
def test_a_structure_has_a_name(body: str, wanted: str) -> None:
    assert novel(f"def f(x, y=0):\n    {body}") == wanted


def test_what_fits_a_scheme_is_not_new() -> None:
    programs = {**COORDINATOR, **FALLBACK, **FILTER, **NONE}
    assert {novel(code) for code in programs.values()} == {""}
    found = {title: novel(code) for title, code in DECORATOR.items() if novel(code)}
    either = "defined on either branch, thin on one"  # both definitions are read
    assert found == {"two calls": "compared", "nested calls": "chained", either: "apart"}


def test_names_of_one_structure_are_one_whatever_the_names_in_it() -> None:
    first = "def f(a, b):\n    return aux(a) - aux(b)"
    second = "def f(one, two):\n    x = aux(one.lower())\n    y = aux(two)\n    return 2 * x - y"
    assert novel(first) == novel(second) == "computed"


LOOP, PLUS = "return sum(aux(n) for n in (a, b))", "return aux(a) + aux(b)"


def cubes_of_two(gold: str) -> Problem:
    """The sum of two cubes; `gold` is what its own solution does."""
    tests = [[[a, b], a**3 + b**3] for a, b in ((1, 2), (3, 0), (-2, 5), (4, 4), (7, -1), (0, 0))]
    own = {"gold_main": f"def sum_of_cubes(a, b):\n    {gold}", "tests": tests}
    signature = "def sum_of_cubes(a: int, b: int) -> int:"
    return CUBES.model_copy(update={"data": {**CUBES.data, **own, "signature": signature}})


@pytest.mark.parametrize(
    ("gold", "helper", "wanted"),
    [(LOOP, CUBE, {"novel_computed"}), (PLUS, CUBE, set()), (LOOP, "def aux(n):\n    pass", set())],
    ids=["found", "asked for by the problem", "does not work"],
)
async def test_a_way_that_works_and_is_not_the_problems_own_is_tagged(
    gold: str, helper: str, wanted: set[str], tools: Tools
) -> None:
    score = await scored(tools, helper, f"def sum_of_cubes(a, b):\n    {PLUS}", cubes_of_two(gold))
    assert {tag for tag in score.tags if tag.startswith("novel_")} == wanted
    assert "scheme_decorator" in score.tags
