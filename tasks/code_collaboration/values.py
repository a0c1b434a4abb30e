"""What is known of a value, of a function and of a call while a program is followed, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Origin(Enum):
    """What a value is, as far as the thin wrapper and the fallback ask."""

    ECHO = auto()  # what aux returned for untouched arguments
    RESULT = auto()  # what aux returned for arguments that were worked on
    GIVEN = auto()  # an argument, untouched
    CONSTANT = auto()
    NOTHING = auto()  # None
    OWN = auto()  # computed


@dataclass(frozen=True, slots=True)
class Site:
    """A call of aux: its text, so that equal calls are one, and where it stands."""

    text: str
    loop: bool
    within: frozenset[FunctionNode]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the program, with the names around it; without a node it is aux."""

    node: FunctionNode | None = None
    home: Frame | None = None
    defaults: dict[str, Value] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Value:
    """The calls of aux that flow into it, what it may be, and the functions that it may hold."""

    taint: frozenset[Site] = frozenset()
    origins: frozenset[Origin] = frozenset({Origin.OWN})
    functions: frozenset[Function] = frozenset()

    @property
    def raw(self) -> bool:
        """Whether it is just what aux returned."""
        return self.origins <= {Origin.ECHO, Origin.RESULT}

    @property
    def own(self) -> bool:
        """Whether it was found without aux, and is more than a constant."""
        return not self.taint and bool(self.origins & {Origin.OWN, Origin.GIVEN})

    def worked(self, taint: frozenset[Site] = frozenset()) -> Value:
        """The value after work on it, with what else flowed in."""
        return Value(self.taint | taint, functions=self.functions)


@dataclass(slots=True, eq=False)
class Frame:
    """The names of one call or of the module, at the point that has been reached."""

    parent: Frame | None = None
    names: dict[str, Value] = field(default_factory=dict)
    outer: dict[str, Frame] = field(default_factory=dict)  # names declared global or nonlocal
    live: bool = True
    returns: list[Value] = field(default_factory=list)
    breaks: list[dict[str, Value]] = field(default_factory=list)
    nexts: list[dict[str, Value]] = field(default_factory=list)

    def holder(self, name: str) -> Frame | None:
        """The frame that a name is bound in, from here outwards."""
        frame: Frame | None = self.outer.get(name, self)
        while frame is not None and name not in frame.names:
            frame = frame.parent
        return frame


@dataclass(slots=True)
class Way:
    """One branch: its names at the end, whether the end is reached, and what it returned."""

    names: dict[str, Value]
    live: bool
    returns: list[Value]


@dataclass(slots=True)
class Trace:
    """What was seen on the way through the entry point."""

    calls: list[Site] = field(default_factory=list)
    used: set[Site] = field(default_factory=set)
    returns: list[Value] = field(default_factory=list)
    recursive: set[FunctionNode] = field(default_factory=set)
    branched: bool = False  # on something else than aux's result
    raised: bool = False  # outside of handlers
    fallback: bool = False
    filtered: bool = False


AUX = Function()
GIVEN = Value(origins=frozenset({Origin.GIVEN}))
CONSTANT = Value(origins=frozenset({Origin.CONSTANT}))
NOTHING = Value(origins=frozenset({Origin.NOTHING}))
FIXED = {Origin.CONSTANT, Origin.NOTHING}
UNTOUCHED = {Origin.GIVEN, *FIXED}


def join(values: Iterable[Value]) -> Value:
    """Any of the values; computed if there are none."""
    found = list(values)
    if len(found) == 1:
        return found[0]
    origins = frozenset(origin for value in found for origin in value.origins)
    return Value(
        frozenset(site for value in found for site in value.taint),
        origins or frozenset({Origin.OWN}),
        frozenset(function for value in found for function in value.functions),
    )


def join_names(states: Iterable[dict[str, Value]]) -> dict[str, Value]:
    """Every name with what it may be; unchanged values keep their identity."""
    merged: dict[str, Value] = {}
    for state in states:
        for name, value in state.items():
            known = merged.get(name, value)
            merged[name] = value if known == value else join([known, value])
    return merged


def rescues(result: Way, other: Way, sites: frozenset[Site], raw: bool) -> bool:
    """Whether one way delivers the result (as aux gave it, if `raw`) and the other main's own."""

    def delivered(value: Value) -> bool:
        return bool(value.taint & sites) and (value.raw or not raw)

    if any(map(delivered, result.returns)) and any(value.own for value in other.returns):
        return True
    both = result.names.keys() & other.names.keys() if result.live and other.live else ()
    return any(delivered(result.names[name]) and other.names[name].own for name in both)


def transforms(ways: list[Way], sites: frozenset[Site]) -> bool:
    """Whether all ways only go on with the result, each in its manner."""
    if all(way.returns for way in ways):
        return all(value.taint & sites for way in ways for value in way.returns)
    if any(way.returns or not way.live for way in ways):
        return False
    first, *others = (way.names for way in ways)
    changed = {n for w in others for n in {*first, *w} if w.get(n) is not first.get(n)}
    everywhere = (way.names.get(name) for name in changed for way in ways)
    return bool(changed) and all(value and value.taint & sites for value in everywhere)
