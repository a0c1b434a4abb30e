"""Runs a test of HumanEval's shape in a process that the candidate never sees.

`check(candidate)` gets a stand-in that asks the candidate's process for each call and gives back
plain values of exact built-in types: an object that equals everything can't come through. Each
assert counts for itself, so that a test tells more than yes or no.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

from orchestry.services.sandbox.inside.candidate import MAX_WHY, Record, timed
from orchestry.services.sandbox.inside.tagged import dumps, loads

NAME = "<test>"
_TALLY = "__orchestry_tally__"

Ask = Callable[[bytes], bytes]
"""From the tagged arguments of a call to the candidate's record."""


class CandidateError(Exception):
    """The candidate gave no value."""


class Tally(ast.NodeTransformer):
    """Turns each assert into a count of whether it holds; the test goes on either way."""

    def __init__(self) -> None:
        self.passed, self.total, self.written = 0, 0, 0
        self.failed = ""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """`assert x` becomes `tally(lambda: x, "x")`, with the names that x itself would see."""
        self.written += 1
        asked = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node.test)
        call = ast.Call(ast.Name(_TALLY, ast.Load()), [asked, ast.Constant(ast.unparse(node))], [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node))

    def count(self, holds: Callable[[], Any], text: str) -> None:
        """One assert."""
        self.total += 1
        try:
            if holds():
                self.passed += 1
                return
            why = f"not so: {text}"
        except Exception as error:  # the candidate's value may not fit what is done with it
            why = f"{text}: {error}"
        self.failed = self.failed or why


def run_test(job: dict[str, Any], ask: Ask, send: Callable[[Record], None]) -> None:
    """One record: how many asserts held, of how many, and which one failed first.

    Where the test ends early, the asserts that it did not come to count as failed.
    """
    tally = Tally()
    ended = timed(lambda: _play(job["test"], tally, ask), job["call_s"])
    total = max(tally.total, tally.written, tally.passed + bool(ended))
    value = dumps((tally.passed, total)).decode("ascii")
    why = tally.failed or ended.get("why", "")
    send({"index": 0, "verdict": "value", "value": value, "why": why[:MAX_WHY]})


def _play(test: str, tally: Tally, ask: Ask) -> Record:
    names: dict[str, Any] = {"__name__": "test", _TALLY: tally.count}
    tree = tally.visit(ast.parse(test))
    exec(compile(tree, NAME, "exec", dont_inherit=True), names)  # noqa: S102
    names["check"](partial(_call, ask))
    return {}


def _call(ask: Ask, *args: Any) -> Any:
    """What stands in for the candidate."""
    record = loads(ask(dumps(args)))
    if record.get("verdict") != "value":
        raise CandidateError(f"the candidate gave no value: {record.get('why')}")
    return loads(record["value"].encode("ascii"))
