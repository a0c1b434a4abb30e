"""How a main function works with its helper: one of four schemes, or none."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Literal

from .reading import Reading, bindings, called, inspects, within

Scheme = Literal["fallback", "decorator", "coordinator", "strategy_filter", "none"]
SCHEMES = ("fallback", "decorator", "coordinator", "strategy_filter")
"""Those of the MAGRPO paper (arXiv 2508.04652)."""
_Body = Sequence[ast.stmt]
_MOST = 64  # choices that are judged of one function: each looks at what comes after it
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class Choice:
    """Ways between which a condition decides, or whether what is tried fails (test: None)."""

    test: ast.expr | None
    ways: Sequence[_Body]
    rest: _Body
    looped: bool


def scheme_of(reading: Reading) -> Scheme:
    """The scheme of a code whose results are used and that is no thin wrapper.

    In order of precedence, the first that holds:

    coordinator: aux is called in a loop, a comprehension or a recursion, or handed to a function
    that calls it (`map(aux, xs)`). First, since what happens to one item (a filter in a
    comprehension, a `try` in a loop) is part of how the items are worked off.
    fallback: main delivers the result, or else what it found itself: in a handler of the `try`
    around the call or after it, on the other side of a condition on the result, after `or`. Before
    the filter, since asking whether a result is valid is a condition on it as well. A constant is
    no way of its own: main must compute, or give an argument back.
    strategy_filter: a condition on the result, outside of loops, decides which way main goes.
    Before the decorator, since whatever main returns then is worked out on one of the ways. Ways
    that all go on with the result only (`-r if r < 0 else r`) are work on it, not a filter.
    decorator: all other uses: main works on the argument or the result, or adds cases of its own.
    """
    if any(_repeats(reading, node) for node in reading.reached):
        return "coordinator"
    choices = [*_choices(reading)]
    if any(_rescues(reading, choice) for choice in choices) or _or_else(reading):
        return "fallback"
    return "strategy_filter" if any(_filters(reading, c) for c in choices) else "decorator"


def _repeats(reading: Reading, node: ast.AST) -> bool:
    """Whether a node has aux called again and again."""
    match node:
        case ast.For(body=parts) | ast.AsyncFor(body=parts):
            return any(map(reading.asks, parts))
        case ast.While(test=test, body=parts):
            return any(map(reading.asks, (test, *parts)))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            first, *more = node.generators
            elements = [child for child in ast.iter_child_nodes(node) if child is not first]
            return any(map(reading.asks, (*elements, *first.ifs, *more)))
        case ast.Call(args=args, keywords=keywords) if not inspects(node):
            own = reading.functions(called(node))
            inner = (n for function in own for n in within(function) if isinstance(n, ast.Call))
            handed = () if own else (*args, *(keyword.value for keyword in keywords))
            recurs = any(called(call) == called(node) for call in inner)
            return (recurs and reading.asks(node)) or any(_hands(reading, arg) for arg in handed)
    return False


def _hands(reading: Reading, arg: ast.expr) -> bool:
    """Whether an argument is a function that asks aux."""
    if isinstance(arg, ast.Lambda):
        return reading.asks(arg.body)
    return reading.asker(arg)


# --- what a result decides ------------------------------------------------------------------------


def _choices(reading: Reading) -> Iterator[Choice]:
    """All that hang on aux's results, the first of many in each function."""
    for function in reading.visited:
        if not isinstance(function, ast.Lambda):
            found = _in_block(function.body, (), looped=False)
            yield from islice((c for c in found if _hangs(reading, c)), _MOST)
    for node in reading.reached:
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse) if reading.carries(test):
                yield Choice(test, [[ast.Return(body)], [ast.Return(orelse)]], (), looped=False)


def _hangs(reading: Reading, choice: Choice) -> bool:
    tried = [choice.test] if choice.test else choice.ways[0]
    return any(map(reading.carries, tried))


def _in_block(body: _Body, after: _Body, looped: bool) -> Iterator[Choice]:
    """The choices of a block, with all that comes after each."""
    for i, node in enumerate(body):
        rest = (*body[i + 1 :], *after)
        match node:
            case ast.If(test=test, body=then, orelse=orelse):
                yield Choice(test, (then, orelse), rest, looped)
            case ast.Assert(test=test):
                yield Choice(test, ([ast.Raise()], []), rest, looped)
            case ast.Match(subject=subject, cases=cases):
                yield Choice(subject, [*(case.body for case in cases), []], rest, looped)
            case ast.Try(handlers=[_, *_] as handlers):
                tried = [*node.body, *node.orelse]
                yield Choice(None, (tried, *(handler.body for handler in handlers)), rest, looped)
            case ast.With(items=items) if any("suppress" in ast.unparse(one) for one in items):
                yield Choice(None, (node.body, ()), rest, looped)
        for inner in _blocks(node):
            yield from _in_block(inner, rest, looped or isinstance(node, _LOOPS))


def _blocks(node: ast.stmt) -> Iterator[_Body]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            for name in ("body", "orelse", "finalbody"):
                yield getattr(part, name, ())


def _rescues(reading: Reading, choice: Choice) -> bool:
    """Whether one way delivers the result, if need be worked on, and another main's own."""
    valid = choice.test is None or _checks_validity(choice.test)

    def delivers(value: ast.AST) -> bool:
        return reading.carries(value) and (valid or reading.raw(value))

    return any(
        any(map(delivers, one)) and any(map(reading.own, other))
        for values in _values(reading, choice)
        for one, other in permutations(values, 2)
    )


def _filters(reading: Reading, choice: Choice) -> bool:
    """Whether not all ways go on with the result only."""
    if choice.test is None or choice.looped:
        return False
    found = [way for ways in _values(reading, choice) for way in ways]
    return not found or not all(way and all(map(reading.carries, way)) for way in found)


def _values(reading: Reading, choice: Choice) -> list[list[list[ast.AST]]]:
    """What each way returns; or where all go on, for each name what it is after each way."""
    ended = [_ends(way) for way in choice.ways]
    if any(ended):
        ways = zip(choice.ways, ended, strict=True)
        return [[_returns((*way, *(() if ends else choice.rest))) for way, ends in ways]]
    bound = [_assigned(way) for way in choice.ways]
    found = []
    for name in dict.fromkeys(name for way in bound for name in way):
        inside = [id(value) for way in bound for value in way.get(name, ())]
        before = [value for value in reading.bound[name] if id(value) not in inside]
        found.append([way.get(name, before) for way in bound])
    return found


def _ends(way: _Body) -> bool:
    return bool(way) and isinstance(way[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)


def _returns(way: _Body) -> list[ast.AST]:
    found: list[ast.AST] = []
    for node in way:
        found += [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value]
        if _ends([node]):
            break
    return found


def _assigned(way: _Body) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in (inner for statement in way for inner in ast.walk(statement)):
        for target, value in bindings(node):
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(value)
    return found


def _checks_validity(node: ast.expr) -> bool:
    """Whether a condition asks if there is a result at all: its truth, None, its type."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner) | ast.NamedExpr(value=inner):
            return _checks_validity(inner)
        case ast.BoolOp(values=operands):
            return any(map(_checks_validity, operands))
        case ast.Compare(comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
    return isinstance(node, ast.Name)


def _or_else(reading: Reading) -> bool:
    """Whether main has its own value after `or`, outside of conditions."""
    tests = {id(p) for n in reading.reached for p in ast.walk(getattr(n, "test", ast.Pass()))}
    return any(
        isinstance(node, ast.BoolOp)
        and isinstance(node.op, ast.Or)
        and id(node) not in tests
        and reading.raw(node.values[0])
        and any(map(reading.own, node.values[1:]))
        for node in reading.reached
    )
