"""Whether a main function works with its helper: what the code alone says of the cooperation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestry import parse_code

from .flow import follow
from .values import Origin, Trace


@dataclass(frozen=True, slots=True)
class Usage:
    """How the entry point of main's code uses aux; all False where nothing can be said.

    calls: it calls the real aux, in code that can be reached from it.
    used: some result flows into what it returns or decides (condition, loop, raise); what aux
    returned for constants does not count, since main could know that beforehand.
    thin: it only hands its arguments on to aux and returns what comes.
    shadowed: main's code binds the name of aux itself, anywhere (as a method does not count).
    trace: all that was seen.
    """

    calls: bool = False
    used: bool = False
    thin: bool = False
    shadowed: bool = False
    trace: Trace | None = field(default=None, compare=False, repr=False)


def usage_of(main_code: str, entry_point: str, aux: str = "aux") -> Usage:
    """Reads any text, runs nothing and never raises."""
    tree = parse_code(main_code)
    if tree is None:
        return Usage()
    if is_shadowed(tree, aux):
        return Usage(shadowed=True)
    try:
        trace = follow(tree, entry_point, aux)
    except (RecursionError, ValueError, MemoryError):  # too deep, or integers of too many digits
        trace = None
    if trace is None:
        return Usage()
    used = bool(trace.used)
    return Usage(bool(trace.calls) or used, used, used and is_thin(trace), trace=trace)


def is_thin(trace: Trace) -> bool:
    """Whether aux's untouched result is all that comes back, and there is nothing else to it.

    A None instead of the result is nothing either, unless main chooses it by a condition of its
    own. Guards that raise or return, and work on arguments or result, are more than handing on.
    """
    origins = {origin for value in trace.returns for origin in value.origins}
    silent = Origin.NOTHING not in origins or not trace.branched
    echoes = Origin.ECHO in origins and origins <= {Origin.ECHO, Origin.NOTHING}
    return echoes and silent and not trace.raised


def is_shadowed(tree: ast.Module, aux: str) -> bool:
    """Whether the code defines, assigns, imports, deletes or takes as a parameter that name."""
    members = {id(child) for node in ast.walk(tree) for child in _members(node)}
    return any(_bound(node) == aux for node in ast.walk(tree) if id(node) not in members)


def _members(node: ast.AST) -> Iterator[ast.AST]:
    """The names in a class body: its attributes, not names of the module."""
    for child in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from targets


def _bound(node: ast.AST) -> str | None:
    """The name that one node binds or unbinds."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return node.name
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            return name
        case ast.alias(name=name, asname=other):
            return other or name.split(".")[0]
        case ast.MatchMapping(rest=rest):
            return rest
    return None
