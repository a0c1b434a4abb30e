"""HumanEval and LeetCode as problems of this task, from its hub or from a local copy.

A test here is a call and the value that it returns. So only asserts with written values are taken,
such as `assert candidate([1], 2) == 3`; loops, random inputs and other conditions are left out.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestry import Problem, Split, datasets, errors

LEAST = 3
"""Fewest tests of a problem, beside the example that the agents see; with fewer it is left out."""
_COMPUTED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNWRITTEN = (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError)
_Test = tuple[list[Any], Any]
"""A call's arguments, and the value that it returns."""


def problems(bank: str, path: Path | None, split: Split) -> Sequence[Problem]:
    """The problems of one split of `bank`, in the data set's order; see datasets.functions."""
    whole = _all(bank, path.expanduser().absolute() if path else None)
    return tuple(problem for problem in whole if problem.split == split)


@lru_cache(maxsize=4)  # a run asks for its splits over and over
def _all(bank: str, path: Path | None) -> tuple[Problem, ...]:
    found = map(_problem, datasets.functions(bank, path))
    whole = tuple(problem for problem in found if problem is not None)
    if not whole:
        raise errors.TaskError(
            f"{path or bank} has no problem with a solution in Python and more than {LEAST} tests: "
            "give some both, or take task code_collaboration, which needs neither"
        )
    return whole


def _problem(row: datasets.Function) -> Problem | None:
    """None if the row has no solution or too few tests."""
    tests = _tests(row)
    if not row.reference or len(tests) <= LEAST:
        return None
    data: dict[str, Any] = {
        "entry_point": row.name,
        "signature": row.signature,
        "preamble": row.preamble,
        "example": tests[0],
        "tests": tests[1:],
        "reference": row.reference,
    }
    if row.grade:
        data["grade"] = row.grade
    return Problem(
        id=row.id, prompt=row.description, data=data, split=row.split or datasets.split_of(row.id)
    )


def _tests(row: datasets.Function) -> list[_Test]:
    """The tests with written values, each call once, in order."""
    found: dict[str, _Test] = {repr(args): (args, expected) for args, expected in row.calls}
    for statement in row.tests:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assert):
                for args, expected in _asserted(node.test):
                    found.setdefault(repr(args), (args, expected))
    return list(found.values())


def _asserted(test: ast.expr) -> Iterator[_Test]:
    """What an assert says about one call, if all of it is written out."""
    call, expected = _sides(test)
    if not isinstance(call, ast.Call) or call.keywords or ast.unparse(call.func) != "candidate":
        return
    try:
        yield [_value(each) for each in call.args], _value(expected)
    except _UNWRITTEN:
        return


def _sides(test: ast.expr) -> tuple[ast.expr, ast.expr]:
    """A call and its value in `call == value`, `call`, `not call`, `abs(call - value) < small`."""
    match test:
        case ast.Compare(
            ast.Call(ast.Name("abs"), [ast.BinOp(call, ast.Sub(), right)]), [ast.Lt()]
        ):
            return call, ast.BinOp(right, ast.Mult(), ast.Constant(1.0))
        case ast.Compare(call, [ast.Eq() | ast.Is()], [right]):
            return call, right
        case ast.UnaryOp(ast.Not(), call):
            return call, ast.Constant(value=False)
    return test, ast.Constant(value=True)


def _value(node: ast.expr) -> Any:
    """A written value; also sums and products of such, as in `candidate(3 * 19)`."""
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        return _COMPUTED[type(node.op)](_value(node.left), _value(node.right))
    return ast.literal_eval(node)
