"""HumanEval, CoopHumanEval and LeetCode as problems of this task, from a hub or a local copy."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestry import Problem, Split, datasets

AUX_GOAL = (
    "Write aux, which takes the same arguments as {name} and returns data that helps to compute "
    "its result: an intermediate value, a lookup table, a checked or sorted input."
)
MAIN_GOAL = "Write {name}, which solves the problem; call aux and build on what it returns."

_NAMED = """\
_check = check


def check(candidate):
    global {name}
    {name} = candidate
    _check(candidate)"""


def problems(bank: str, path: Path | None, split: Split) -> Sequence[Problem]:
    """The problems of one split of `bank`, in the data set's order; see datasets.functions."""
    whole = _all(bank, path.expanduser().absolute() if path else None)
    return tuple(problem for problem in whole if problem.split == split)


@lru_cache(maxsize=4)  # a run asks for its splits over and over
def _all(bank: str, path: Path | None) -> tuple[Problem, ...]:
    return tuple(map(_problem, datasets.functions(bank, path)))


def _problem(row: datasets.Function) -> Problem:
    data: dict[str, Any] = {
        "entry_point": row.name,
        "signature": row.signature,
        "preamble": row.preamble,
        "aux_signature": f"def aux({row.parameters}):",
        "aux_goal": AUX_GOAL.format(name=row.name),
        "main_goal": MAIN_GOAL.format(name=row.name),
    }
    if row.calls:
        data |= {"example": row.calls[0], "tests": [*row.calls[1:]]}
    else:
        data["check"] = _check(row)
    if row.grade:
        data["grade"] = row.grade
    return Problem(
        id=row.id,
        prompt=row.description,
        data={**data, "reference": row.reference} if row.reference else data,
        split=row.split or datasets.split_of(row.id),
    )


def _check(row: datasets.Function) -> str:
    """The test with all that its names stand for, without asserts of nothing.

    HumanEval/32, 38 and 50 call the prompt's helpers. HumanEval/33 compares with the function that
    is asked for, by name: that is the reference, or without one the candidate.
    """
    named = any(
        isinstance(node, ast.Name) and node.id == row.name
        for statement in row.tests
        for node in ast.walk(statement)
    )
    pieces = [row.preamble, *(ast.unparse(_Telling().visit(node)) for node in row.tests)]
    if named:
        pieces += [row.reference or _NAMED.format(name=row.name)]
    return "\n\n".join(filter(None, pieces)) + "\n"


class _Telling(ast.NodeTransformer):
    """Drops `assert True, "..."`, of which HumanEval has many, as every candidate passes it."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        vacuous = isinstance(node.test, ast.Constant) and node.test.value
        return ast.copy_location(ast.Pass(), node) if vacuous else node
