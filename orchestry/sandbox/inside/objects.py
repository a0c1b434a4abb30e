"""A solution's functions and objects, for a test in another process.

Plain values cross as copies. All else stays in the solution's process: the test gets its number,
and asks for each operation on it. So the test's process runs none of the solution's code.
"""

from __future__ import annotations

import builtins
import operator
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from orchestry.sandbox.inside.candidate import Record, execute, explain, fitted, opened, timed
from orchestry.sandbox.inside.tagged import Untaggable, dumps, loads

Packed = tuple[Any, ...]
"""A value on its way: ("plain", it), ("list", items) and so on, or what its sender keeps."""
Keep = Callable[[Any], Packed]
SOLUTION = "solution"
"""The module's name in tests."""
ASKS, RAISED = "asks", "raised"
"""Verdicts beside a call's own: a function of the test's is called; the solution raised."""
SCALARS = frozenset((int, float, str, bool, bytes, type(None)))
_MANY: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAKERS: dict[str, Any] = {"iterator of": iter, **{name: kind for kind, name in _MANY.items()}}
_DICTS = frozenset((dict, Counter, OrderedDict, defaultdict))
_DEEP = 40  # each level takes two of tagged JSON's


def pack(value: Any, keep: Keep, deep: int = _DEEP) -> Packed:
    """A value for the other process; `keep` packs what is no plain data."""
    kind = type(value)
    if kind in SCALARS:
        return ("plain", value)
    if deep and kind in _MANY:
        items = [pack(item, keep, deep - 1) for item in value]
        return _many(_MANY[kind], items, value)
    if deep and kind in _DICTS:
        pairs = dict.items(value)
        return _many("dict", [pack(i, keep, deep - 1) for p in pairs for i in p], dict(pairs))
    return keep(value)


def _many(name: str, items: list[Packed], value: Any) -> Packed:
    return ("plain", value) if all(item[0] == "plain" for item in items) else (name, items)


def unpack(packed: Packed, find: Callable[[Packed], Any]) -> Any:
    """The value; `find` gives what one of the two processes keeps."""
    kind, content, *_ = packed
    if kind == "plain":
        return content
    if kind != "dict" and kind not in _MAKERS:
        return find(packed)
    items = [unpack(item, find) for item in content]
    if kind == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    return _MAKERS[kind](items)


def _called(function: Any, *args: Any, **named: Any) -> Any:
    return function(*args, **named)


ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"),
    *("lshift", "rshift"),
)
ORDERED = ("lt", "le", "gt", "ge")
_OPERATORS = ("eq", "contains", "getitem", "setitem", "delitem", "neg", "pos")
_BUILT_IN = (
    *("getattr", "setattr", "delattr", "len", "iter", "next", "reversed", "str", "repr", "bool"),
    *("hash", "abs", "int", "float", "round"),
)
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _called,
    "enter": lambda found: type(found).__enter__(found),
    "exit": lambda found, *error: type(found).__exit__(found, *error),
    **{name: getattr(operator, name) for name in (*ARITHMETIC, *ORDERED, *_OPERATORS)},
    **{name: getattr(builtins, name) for name in _BUILT_IN},
}
"""What a test may ask for, by name."""


class Served:
    """The solution in its own process, which answers a test's operations."""

    def __init__(
        self, job: dict[str, Any], receive: Callable[[], bytes], send: Callable[[bytes], None]
    ) -> None:
        self._receive, self._send = receive, send
        self._call_s, self._output_kb = job["call_s"], job["output_kb"]
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._code = job["code"]
        self._module = opened(self._code, SOLUTION)
        self._failure = timed(self._load, self._call_s)

    def _load(self) -> Record:
        execute(self._code, vars(self._module))
        return {}

    def until_told(self) -> Any:
        """Answers, until the test says what a function of its own came to."""
        while True:
            asked, *content = loads(self._receive())
            if asked == "returned":
                return unpack(content[0], self._find)
            if asked == RAISED:
                name, args = content
                raise self._named(name, RuntimeError)(*args)
            self._say(self._failure or timed(lambda: self._answer(asked, content), self._call_s))  # noqa: B023

    def _say(self, record: Record) -> None:
        self._send(fitted(record, self._output_kb << 10, self._output_kb))

    def _answer(self, asked: str, content: list[Any]) -> Record:
        if asked == "classes":
            return {"verdict": "value", "value": dumps(self._classes())}
        args, named = (unpack(one, self._find) for one in content)
        try:
            found = _OPERATIONS[asked](*args, **named)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            return {"verdict": RAISED, "value": self._error(error), **explain(error)}
        return {"verdict": "value", "value": dumps(pack(found, self._keep))}

    def _classes(self) -> dict[str, list[str]]:
        """Of each public class its bases, as far as the test can know them."""
        names = [*vars(self._module).items()]
        return {n: self._kinds(one) for n, one in names if isinstance(one, type) and n[0] != "_"}

    def _kinds(self, kind: type) -> list[str]:
        """Names of the class and its bases that are the solution's public ones, or built in."""
        return [
            one.__name__
            for one in kind.__mro__
            if not one.__name__.startswith("_") and self._named(one.__name__) is one
        ]

    def _named(self, name: str, otherwise: Any = None) -> Any:
        return vars(self._module).get(name) or getattr(builtins, name, otherwise)

    def _error(self, error: BaseException) -> bytes:
        kinds = self._kinds(type(error))
        try:
            return dumps((kinds, error.args, vars(error)))
        except Untaggable:
            return dumps((kinds, (str(error),), {}))

    def _keep(self, value: Any) -> Packed:
        """The number of what stays here, and what it is."""
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number == len(self._kept):
            self._kept.append(value)
        if isinstance(value, type) and self._named(value.__name__) is value:
            return ("class", number, value.__name__)
        kinds = self._kinds(type(value))
        if any(name in vars(self._module) for name in kinds):
            return ("object", number, kinds)
        if hasattr(type(value), "__next__"):
            return ("iterator", number, "iterator")
        if callable(value):
            return ("function", number, str(getattr(value, "__name__", "")))
        return ("other", number, type(value).__name__)

    def _find(self, packed: Packed) -> Any:
        kind, number = packed
        if kind == SOLUTION:
            return self._module
        if kind == "class":
            return self._named(number)
        return self._kept[number] if kind == "kept" else self._function(number)

    def _function(self, number: int) -> Callable[..., Any]:
        """Stands for a function of the test's."""

        def function(*args: Any, **named: Any) -> Any:
            given = (number, pack(args, self._keep), pack(named, self._keep))
            self._say({"verdict": ASKS, "value": dumps(given)})
            return self.until_told()

        return function
