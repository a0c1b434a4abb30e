"""Runs a test of HumanEval's shape in a process that the candidate never sees.

`check(candidate)` gets a stand-in that sends each call to the candidate's process; mirror.py says
what comes back, and that no object that equals everything does. Each written assert counts once,
however often it runs, because the candidate may influence that.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from types import TracebackType
from typing import Any

from orchestry.sandbox.inside.candidate import MAX_WHY, Record, Send, timed
from orchestry.sandbox.inside.mirror import Mirror
from orchestry.sandbox.inside.tagged import Untaggable, dumps, dumps_record, loads_record

_NAME = "<test>"
_TALLY = "__orchestry_tally__"
_NONE = "the candidate gave no value: "
_ENDS = (StopIteration, StopAsyncIteration)

Ask = Callable[[bytes], bytes]
"""From the tagged arguments of a call to the candidate's record."""


class CandidateError(Exception):
    """The candidate gave no value."""

    no_value = ""
    """Why, also where the error itself says what the candidate's own one said."""


def _told(error: BaseException) -> str:
    return error.no_value if isinstance(error, CandidateError) else str(error)


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
            self._tally.note(self._number, False, f"{self._text}: {_told(error)}")
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
        self._tally.failed = self._tally.failed or _told(error)
        for number in self._asserts:  # includes this round's asserts, and not all of them ran
            self._tally.note(number, False, _told(error))
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
    try:
        names["check"](Candidate(ask, names).function)
    except CandidateError as error:
        return {"verdict": "error", "why": error.no_value}
    return {}


class Candidate:
    """What a test calls in the candidate's process."""

    def __init__(self, ask: Ask, names: dict[str, Any]) -> None:
        self._ask, self._names = ask, names
        self._mirror = Mirror(names, 0, self._call)
        self._deep = 0

    def function(self, *args: Any, **named: Any) -> Any:
        """The stand-in for the candidate's function."""
        return self._call(0, args, named)

    def _call(self, number: int, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        data = self._mirror.pack(("call", number, args, named))
        self._deep += 1
        try:
            verdict, why, value = self._said(data)
            while verdict == "asks":
                verdict, why, value = self._said(self._called(*value))
        except (Untaggable, TypeError, EOFError) as error:  # of what the candidate may say
            raise _none(f"broke the channel: {error}") from None
        finally:
            self._deep -= 1
            if not self._deep:
                self._mirror.forget()
        if verdict == "value":
            return value
        raise self._error(why, value)

    def _said(self, data: bytes) -> tuple[str, str, Any]:
        record = loads_record(self._ask(data))
        value = self._mirror.unpack(record["value"]) if "value" in record else None
        return str(record.get("verdict")), str(record.get("why")), value

    def _called(self, number: int, args: tuple[Any, ...], named: dict[str, Any]) -> bytes:
        """What a function of the test's comes to, which the candidate calls."""
        if type(number) is not int or not 0 <= number < len(self._mirror.given):
            raise Untaggable("no function of the test's")
        try:
            return self._mirror.pack(("returned", self._mirror.given[number][1](*args, **named)))
        except Exception as error:
            try:
                return self._mirror.pack(("raised", type(error).__name__, error.args))
            except Untaggable:
                return self._mirror.pack(("raised", type(error).__name__, (str(error),)))

    def _error(self, why: str, raised: Any) -> CandidateError:
        """Also an instance of the first class of what the candidate raised that the test knows.

        Except classes that end an iteration: in a test's `map` or `zip` they would be no error.
        """
        try:
            kinds, args, state = raised
            kind = next(filter(None, map(self._known, kinds)))
            mixed = type(kind.__name__, (CandidateError, kind), {})
            found: CandidateError = mixed.__new__(mixed, *args)
            found.args = args
            vars(found).update({str(key): item for key, item in state.items()})
        except (TypeError, ValueError, AttributeError, StopIteration):  # nothing that it knows
            return _none(why)
        found.no_value = f"{_NONE}{why}"
        return found

    def _known(self, name: Any) -> type[Exception] | None:
        kind = self._names.get(name) or getattr(builtins, str(name), None)
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            return None
        return Exception if issubclass(kind, _ENDS) else kind


def _none(why: str) -> CandidateError:
    found = CandidateError(f"{_NONE}{why}")
    found.no_value = f"{_NONE}{why}"
    return found
