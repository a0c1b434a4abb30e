"""Whether a main function works with its helper: what the code alone says of the cooperation."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from orchestry import parse_code

from .novel import novel_of
from .program import AUX
from .prying import pries
from .reading import Reading, called, named_by, returned
from .schemes import Scheme, scheme_of


@dataclass(frozen=True, slots=True)
class Usage:
    """How the entry point of main's code uses aux; all False if the code can't be read.

    calls: it calls the helper's aux.
    used: some result reaches what main returns or decides by (a condition, a loop, a raise). What
    aux returned for constants does not count, since main could know it beforehand.
    thin: it only passes its arguments to aux and returns the result.
    shadowed: main's code binds the name aux, anywhere but as a method.
    pries: it could tell a stub from the helper without calling it.
    novel: the name of a way of working with aux that is none of the four schemes (novel.py).
    """

    calls: bool = False
    used: bool = False
    thin: bool = False
    shadowed: bool = False
    pries: bool = False
    scheme: Scheme = "none"
    novel: str = ""


def usage_of(main: str, entry_point: str, aux: str = AUX) -> Usage:
    """Reads any text, runs nothing and never raises. `aux` is the helper's function."""
    tree = parse_code(main)
    if tree is None:
        return Usage()
    if aux != AUX:
        _swap(tree, aux)
    if _is_shadowed(tree):
        return Usage(shadowed=True)
    try:
        reading = Reading(tree, entry_point)
        calls = any(isinstance(n, ast.Call) and reading.asks(n) for n in reading.reached)
        used = any(map(reading.carries, _sinks(reading)))
        thin = used and _is_thin(reading)
        scheme = scheme_of(reading) if used and not thin else "none"
        return Usage(
            calls=calls or used,
            used=used,
            thin=thin,
            pries=pries(tree, reading),
            scheme=scheme,
            novel=novel_of(reading) if scheme == "decorator" else "",
        )
    except (RecursionError, ValueError, MemoryError):  # too deep, or integers of too many digits
        return Usage()


def _swap(tree: ast.Module, aux: str) -> None:
    """Names one helper's function aux, and what was named so something that no code can name."""
    names = {aux: AUX, AUX: f"@{AUX}"}
    for node in ast.walk(tree):
        for field in ("id", "name", "arg", "attr", "asname", "rest"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                setattr(node, field, names.get(name, name))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [names.get(name, name) for name in node.names]


def _is_shadowed(tree: ast.Module) -> bool:
    """Whether the code defines, assigns, imports, deletes or takes as a parameter the name aux.

    Attributes in a class body are no names of the module.
    """
    inside = [
        child for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body
    ]
    members = {
        id(part)
        for n in inside
        for part in (n, *getattr(n, "targets", ()), getattr(n, "target", n))
    }
    return any(named_by(node) == AUX for node in ast.walk(tree) if id(node) not in members)


def _sinks(reading: Reading) -> list[ast.AST | None]:
    """All that the entry point returns, and what it and the functions that it calls decide by."""
    found: list[ast.AST | None] = [v for entry in reading.entries for v in returned(entry)]
    for node in reading.reached:
        match node:
            case ast.If(test=sink) | ast.While(test=sink) | ast.IfExp(test=sink):
                found.append(sink)
            case ast.Assert(test=sink) | ast.For(iter=sink) | ast.Match(subject=sink):
                found.append(sink)
            case ast.Raise(exc=sink) | ast.Yield(value=sink) | ast.YieldFrom(value=sink):
                found.append(sink)
    return found


def _is_thin(reading: Reading) -> bool:
    """Whether main only passes its own arguments to aux and returns the result, both unchanged.

    Main may also return None without being more than that, if only aux's result decides when. It
    is more as soon as it changes an argument or the result, raises an error, yields, or returns
    something else in some case.
    """
    values = [value for entry in reading.entries for value in returned(entry)]
    echoes = [v for v in values if not (isinstance(v, ast.Constant) and v.value is None)]
    chosen = (getattr(n, "test", getattr(n, "subject", None)) for n in reading.reached)
    silent = len(echoes) == len(values) or all(map(reading.carries, filter(None, chosen)))
    more = (ast.Yield, ast.YieldFrom)
    busy = any(isinstance(n, more) or getattr(n, "exc", None) for n in reading.reached)
    asked = [n for n in reading.reached if isinstance(n, ast.Call) and called(n) in reading.askers]
    return (
        silent and not busy and all(map(reading.raw, echoes)) and all(map(reading.untouched, asked))
    )
