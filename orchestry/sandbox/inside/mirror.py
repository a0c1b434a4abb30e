"""Values between a test and the candidate, each in its own process, as if both were in one.

A call may change its arguments: what is in lists, dicts, sets and objects is sent both ways, and
the caller's own ones are changed when the call returns. Functions and iterators stay where they
are and are called from the other side. Everything else arrives as an exact type of the standard
library, or of a class that the receiving side itself defines by that name. So no code of the sender
runs at the receiver, and an object that equals everything can't arrive.
"""

from __future__ import annotations

import builtins
import enum
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

from orchestry.sandbox.inside.tagged import (
    BIG,
    MAX_DEPTH,
    Untaggable,
    as_plain,
    check_hashes,
    encode,
    parsed,
)

Ask = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
"""Calls what the other side gave by this number, with these arguments."""
_SCALARS = frozenset((int, float, str, bool, type(None)))
_ITEMS: dict[type, str] = {list: "l", set: "s", deque: "q", bytearray: "y"}
_PAIRS: dict[type, str] = {dict: "d", Counter: "C", OrderedDict: "O", defaultdict: "D"}
_MUTABLE: dict[str, type] = {tag: kind for kind, tag in [*_ITEMS.items(), *_PAIRS.items()]}
_VIEWS: dict[str, tuple[type[Iterable[Any]], Callable[..., Any]]] = {
    "keys": (KeysView, dict.fromkeys),
    "values": (ValuesView, lambda values: dict(enumerate(values))),
    "items": (ItemsView, dict),
}
"""Views of a dict: their class, and what makes a dict that has such a view."""
_OBJECT, _AT = "o", "r"


@functools.cache
def _exact() -> dict[type, tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]]:
    """Immutable types of the standard library: what a value is made of, and what makes it."""
    from datetime import date, datetime, time, timedelta, timezone
    from decimal import Decimal
    from fractions import Fraction

    def written(one: Any) -> tuple[Any, ...]:
        return (one.isoformat(),)

    return {
        complex: (lambda one: (one.real, one.imag), complex),
        range: (lambda one: (one.start, one.stop, one.step), range),
        slice: (lambda one: (one.start, one.stop, one.step), slice),
        Decimal: (lambda one: (str(one),), Decimal),
        Fraction: (lambda one: (one.numerator, one.denominator), Fraction),
        date: (written, date.fromisoformat),
        time: (written, time.fromisoformat),
        datetime: (written, datetime.fromisoformat),
        timezone: (lambda one: (one.utcoffset(None),), timezone),
        timedelta: (lambda one: (one.days, one.seconds, one.microseconds), timedelta),
    }


class Mirror:
    """One side. What is changeable has a number while the outermost call lasts."""

    def __init__(self, names: dict[str, Any], first: int, ask: Ask) -> None:
        """`names`: this side's module. `first`: 0 or 1, so that the sides number apart."""
        self._names, self._next, self._ask = names, first, ask
        self.given: list[tuple[Any, Callable[..., Any]]] = []
        """What the other side may call: functions and iterators, each with how it is called."""
        self._stubs: dict[int, Any] = {}
        self._theirs: dict[int, int] = {}
        """The number of what a stub stands for, by the stub's id."""
        self._places: dict[int, int] = {}
        """By id, the place in `given`."""
        self._todo: list[int] = []
        self.forget()

    def forget(self) -> None:
        """The outermost call is over."""
        self._heap: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._known: dict[int, str] = {}
        """What the other side knows of each."""

    def pack(self, value: Any) -> bytes:
        """The value, and what has changed. Raises Untaggable."""
        self._todo = [*self._heap]
        root = encode(self._tag(value, MAX_DEPTH))
        changes = []
        while self._todo:
            number = self._todo.pop()
            text = encode([number, *self._content(self._heap[number])])
            if self._known.get(number) != text:
                self._known[number] = text
                changes.append(text)
        return f"[{root},[{','.join(changes)}]]".encode("ascii")

    def unpack(self, raw: Any) -> Any:
        """The value of parsed JSON, after all changes. Raises Untaggable for hostile input too."""
        try:
            root, changes = raw
            for number, tag, *rest in changes:
                self._place(number, tag, rest)
            for change in sorted(changes, key=lambda one: one[1] != _OBJECT):  # they may be keys
                self._fill(self._heap[change[0]], change[2:])
                self._known[change[0]] = encode(change)
            return self._untag(root, MAX_DEPTH)
        except Untaggable:
            raise
        except Exception as error:  # also of a property's setter
            raise Untaggable(f"no value: {type(error).__name__}") from None

    def loads(self, data: bytes) -> Any:
        """The same for a message."""
        return self.unpack(parsed(data))

    # --- out ---

    def _tag(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value if kind is not int or -BIG < value < BIG else ["i", hex(value)]
        if depth == 0:
            raise Untaggable(f"nested deeper than {MAX_DEPTH} levels")
        if kind is bytes:
            return ["b", value.hex()]
        if kind is tuple or kind is frozenset:
            return ["t" if kind is tuple else "z", [self._tag(item, depth - 1) for item in value]]
        if kind in _ITEMS or kind in _PAIRS:
            return [_AT, self._number(value)]
        if kind in _exact():
            return [kind.__name__, [self._tag(part, 1) for part in _exact()[kind][0](value)]]
        return self._named(value, kind, depth)

    def _named(self, value: Any, kind: type, depth: int) -> Any:
        """What the other side has by its name, or calls by its number."""
        if id(value) in self._theirs:
            return ["own", self._theirs[id(value)]]
        if isinstance(value, type):
            known = value in (self._names.get(value.__name__), vars(builtins).get(value.__name__))
            return ["k", value.__name__] if known else ["f", self.give(value, value)]
        if isinstance(value, enum.Enum):
            plain = as_plain(value)
            which = value.value if isinstance(value, enum.Flag) else value.name
            return ["e", kind.__name__, which, None if plain is value else plain]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            items = [self._tag(item, depth - 1) for item in tuple.__iter__(value)]
            return ["n", kind.__name__, items]
        if self._names.get(kind.__name__) is kind and not isinstance(value, BaseException):
            return [_AT, self._number(value)]
        for name, (view, make) in _VIEWS.items():
            if isinstance(value, view):
                return ["v", name, self._tag(make(value), depth - 1)]
        if hasattr(kind, "__next__"):
            return ["g", self.give(value, functools.partial(_following, value))]
        if callable(value):
            return ["f", self.give(value, value)]
        raise Untaggable(f"a {kind.__name__} is no plain data")

    def give(self, value: Any, function: Callable[..., Any]) -> int:
        """The number by which the other side calls it."""
        if id(value) not in self._places:
            self._places[id(value)] = len(self.given)
            self.given.append((value, function))
        return self._places[id(value)]

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._todo.append(self._next)
            self._keep(self._next, value)
            self._next += 2
        return self._numbers[id(value)]

    def _keep(self, number: int, value: Any) -> None:
        self._heap[number], self._numbers[id(value)] = value, number

    def _content(self, value: Any) -> tuple[Any, ...]:
        """Tag, what it holds, and how it was made."""
        kind = type(value)
        if kind is bytearray:
            return "y", value.hex()
        if kind in _ITEMS:
            items = [self._tag(item, MAX_DEPTH) for item in value]
            return (_ITEMS[kind], items, value.maxlen) if kind is deque else (_ITEMS[kind], items)
        if kind in _PAIRS:
            made = [self._tag(value.default_factory, 1)] if kind is defaultdict else []
            return _PAIRS[kind], self._pairs(dict.items(value)), *made
        state: Any = object.__getstate__(value)
        whole = state[1] | (state[0] or {}) if isinstance(state, tuple) else state or {}
        return _OBJECT, self._pairs(whole.items()), kind.__name__

    def _pairs(self, pairs: Any) -> list[list[Any]]:
        return [[self._tag(key, MAX_DEPTH), self._tag(item, MAX_DEPTH)] for key, item in pairs]

    # --- in ---

    def _place(self, number: int, tag: str, rest: list[Any]) -> None:
        """An empty one for what is new; else it must be of that type."""
        kind = _MUTABLE[tag] if tag != _OBJECT else self._class(rest[1])
        if number in self._heap:
            if type(self._heap[number]) is not kind:
                raise Untaggable("another type than before")
        elif type(number) is not int or number % 2 == self._next % 2:
            raise Untaggable("a number of this side's")
        elif kind is deque:
            self._keep(number, deque(maxlen=rest[1]))
        elif kind is defaultdict:
            self._keep(number, defaultdict(self._untag(rest[1], 1)))
        else:
            self._keep(number, kind() if tag in _MUTABLE else object.__new__(kind))

    def _fill(self, found: Any, rest: list[Any]) -> None:
        kind = type(found)
        if kind is bytearray:
            found[:] = bytes.fromhex(rest[0])
        elif kind in _ITEMS:
            items = [self._untag(item, MAX_DEPTH) for item in rest[0]]
            if kind is set:
                check_hashes(items)
            found.clear()
            (found.update if kind is set else found.extend)(items)
        else:
            pairs = [(self._untag(k, MAX_DEPTH), self._untag(v, MAX_DEPTH)) for k, v in rest[0]]
            check_hashes([key for key, _ in pairs])
            if kind in _PAIRS:
                found.clear()
                dict.update(found, pairs) if kind is not OrderedDict else found.update(pairs)
            else:
                _set_state(found, dict(pairs))

    def _untag(self, raw: Any, depth: int) -> Any:
        if type(raw) in _SCALARS:
            return raw
        if type(raw) is not list or depth == 0:
            raise Untaggable("a bare object" if depth else f"nested deeper than {MAX_DEPTH} levels")
        tag, content, *rest = raw
        if tag == _AT:
            return self._heap[content]
        if tag in ("t", "z"):
            items = [self._untag(item, depth - 1) for item in content]
            if tag == "t":
                return tuple(items)
            check_hashes(items)
            return frozenset(items)
        if tag in _SIMPLE:
            return _SIMPLE[tag](content)
        if tag in ("f", "g", "own"):
            return self._reached(tag, content)
        return self._made(tag, content, rest, depth)

    def _made(self, tag: str, content: Any, rest: list[Any], depth: int) -> Any:
        """A value of a type that both sides have by its name."""
        if tag == "k":
            return self._class(content, built_in=True)
        if tag == "e":
            kind = self._names.get(content)
            if isinstance(kind, enum.EnumType):
                flags = issubclass(kind, enum.Flag)
                return kind(rest[0]) if flags else kind.__members__[rest[0]]
            if rest[1] is None:
                raise Untaggable(f"an unknown {content}")
            return self._untag(rest[1], 1)
        if tag == "v":
            return _VIEWED[content](self._untag(rest[0], depth - 1))
        if tag == "n":
            items = [self._untag(item, depth - 1) for item in rest[0]]
            known = self._names.get(content)
            if isinstance(known, type) and issubclass(known, tuple):
                return tuple.__new__(known, items)
            return tuple(items)
        for kind, (_, make) in _exact().items():
            if kind.__name__ == tag:
                return make(*(self._untag(part, 1) for part in content))
        raise Untaggable("an unknown tag")

    def _class(self, name: Any, *, built_in: bool = False) -> type:
        kind = self._names.get(name) or (getattr(builtins, name, None) if built_in else None)
        if isinstance(kind, type) and (built_in or kind.__module__ == self._names["__name__"]):
            return kind
        raise Untaggable(f"a {str(name)[:80]}, whose class the test has not, is no plain data")

    def _reached(self, tag: str, number: Any) -> Any:
        """A function or an iterator: what was given, or what stands for the other side's."""
        if type(number) is not int or number < 0:
            raise Untaggable("no number")
        if tag == "own":
            return self.given[number][0]
        if number not in self._stubs:
            stub = self._items(number) if tag == "g" else self._function(number)
            self._stubs[number], self._theirs[id(stub)] = stub, number
        return self._stubs[number]

    def _function(self, number: int) -> Callable[..., Any]:
        def function(*args: Any, **named: Any) -> Any:
            return self._ask(number, args, named)

        return function

    def _items(self, number: int) -> Iterator[Any]:
        while found := self._ask(number, (), {}):
            yield found[0]


_VIEWED = {"keys": dict.keys, "values": dict.values, "items": dict.items}
_SIMPLE: dict[str, Callable[[Any], Any]] = {"i": lambda text: int(text, 16), "b": bytes.fromhex}


def _following(iterator: Iterator[Any]) -> tuple[Any, ...]:
    """The next item, or () at the end."""
    try:
        return (next(iterator),)
    except StopIteration:
        return ()


def _set_state(found: Any, state: dict[str, Any]) -> None:
    """An object's attributes, of which none may stand in for a method."""
    for name in state:
        if name.startswith("__") or callable(getattr(type(found), name, None)):
            raise Untaggable("an attribute in a method's place")
    for name in [*getattr(found, "__dict__", {})]:
        if name not in state:
            object.__delattr__(found, name)
    for name, value in state.items():
        object.__setattr__(found, name, value)
