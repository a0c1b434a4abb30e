"""Runs a test of HumanEval's shape in a process that the candidate never sees.

`check(candidate)` gets a stand-in that sends each call to the candidate's process and returns plain
values of exact built-in types, so an object that equals everything can't come through. Each written
assert counts once, however often it runs, because the candidate may influence that.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from orchestry.sandbox.inside.candidate import MAX_WHY, Record, Send, timed
from orchestry.sandbox.inside.tagged import dumps, dumps_record, loads_record, untag

_NAME = "<test>"
_TALLY = "__orchestry_tally__"

Ask = Callable[[bytes], bytes]
"""From the tagged arguments of a call to the candidate's record."""


class CandidateError(Exception):
    """The candidate gave no value."""


class Tally:
    """Which written asserts always held, and the first that did not."""

    def __init__(self) -> None:
        self.held: dict[int, bool] = {}
        """By its number, for each assert that was run."""
        self.failed = ""

    def one(self, number: int, text: str) -> _One:
        """Wraps an assert: an exception counts as a failure, and the test continues."""
        return _One(self, number, text)

    def round(self, first: int, end: int) -> _Round:
        """Wraps one round of a loop with the asserts from `first` to before `end`; asserts that a
        failed call skips count as failed."""
        return _Round(self, range(first, end))

    def note(self, number: int, held: bool, why: str) -> None:
        """The result of one assert."""
        self.held[number] = held and self.held.get(number, True)
        if not held:
            self.failed = self.failed or why


class _One:
    def __init__(self, tally: Tally, number: int, text: str) -> None:
        self._tally, self._number, self._text = tally, number, text

    def __enter__(self) -> Callable[[Any], None]:
        return self._holds

    def _holds(self, value: Any) -> None:
        self._tally.note(self._number, bool(value), f"not so: {self._text}")

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> bool:
        if isinstance(error, Exception):  # the value may have the wrong type for the test
            self._tally.note(self._number, False, f"{self._text}: {error}")
        return kind is None or isinstance(error, Exception)


class _Round:
    def __init__(self, tally: Tally, asserts: range) -> None:
        self._tally, self._asserts = tally, asserts

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, CandidateError):
            return False
        self._tally.failed = self._tally.failed or str(error)
        for number in self._asserts:  # includes this round's asserts, and not all of them ran
            self._tally.note(number, False, str(error))
        return True


class _Counted(ast.NodeTransformer):
    """The test with a tally around its asserts and in its loops."""

    def __init__(self) -> None:
        self.written = 0
        self.never: set[int] = set()
        """Asserts that should not be reached, such as `assert False`."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """`assert x` becomes `with tally.one(1, "assert x") as holds: holds(x)`."""
        number = self.written
        self.written += 1
        if isinstance(node.test, ast.Constant) and not node.test.value:
            self.never.add(number)
        name = f"{_TALLY}{number}"
        held = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [node.test], []))
        given = (number, ast.unparse(node))
        return _around(node, [held], "one", given, ast.Name(name, ast.Store()))

    def visit_For(self, node: ast.For) -> ast.stmt:
        return self._loop(node)

    def visit_While(self, node: ast.While) -> ast.stmt:
        return self._loop(node)

    def _loop(self, node: ast.For | ast.While) -> ast.stmt:
        before = self.written
        self.generic_visit(node)
        node.body = [_around(node, node.body, "round", (before, self.written))]
        return node


def _around(
    node: ast.stmt,
    body: list[ast.stmt],
    method: str,
    given: tuple[Any, ...],
    name: ast.Name | None = None,
) -> ast.stmt:
    opened = ast.Attribute(ast.Name(_TALLY, ast.Load()), method, ast.Load())
    call = ast.Call(opened, [*map(ast.Constant, given)], [])
    block = ast.With([ast.withitem(call, name)], body)
    return ast.fix_missing_locations(ast.copy_location(block, node))


def run_test(job: dict[str, Any], ask: Ask, send: Send) -> None:
    """One record: how many written asserts always held, of how many, and which failed first.

    An unreached assert counts as failed, unless it should not be reached.
    """
    tally, counted = Tally(), _Counted()
    ended = timed(lambda: _play(job["test"], tally, counted, ask), job["call_s"])
    total = counted.written - len(counted.never - tally.held.keys())
    passed = sum(tally.held.values())
    why = tally.failed or ended.get("why", "")
    if not total:  # a test without asserts, which may have come to its end
        total, passed = 1, int(not why)
    elif ended and passed == total:  # after its last assert
        total += 1
    elif not tally.held and not why:  # usually an empty loop, caused by the candidate
        why = "the test reached none of its asserts"
    value = dumps((passed, total))
    record = {"index": 0, "verdict": "value", "value": value, "why": why[:MAX_WHY]}
    send(dumps_record(record))


def _play(test: str, tally: Tally, counted: _Counted, ask: Ask) -> Record:
    names: dict[str, Any] = {"__name__": "test", _TALLY: tally}
    tree = counted.visit(ast.parse(test))
    exec(compile(tree, _NAME, "exec", dont_inherit=True), names)  # noqa: S102
    names["check"](partial(_call, ask))
    return {}


def _call(ask: Ask, *args: Any, **named: Any) -> Any:
    """The stand-in for the candidate."""
    record = loads_record(ask(dumps((args, named))))
    if record.get("verdict") != "value":
        raise _error(str(record.get("why")))
    return untag(record.get("value"))


def _error(why: str) -> CandidateError:
    """Also an instance of the built-in class that the candidate raised, for tests that expect one.

    Except classes that end an iteration: in a test's `map` or `zip` they would be no error.
    """
    text = f"the candidate gave no value: {why}"
    kind = getattr(builtins, why.partition(":")[0], None)
    ends = (StopIteration, StopAsyncIteration)
    try:
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ends):
            found: CandidateError = type(kind.__name__, (CandidateError, kind), {})(text)
            return found
    except TypeError:  # a class that can't be mixed in, or is not made of a text
        pass
    return CandidateError(text)
