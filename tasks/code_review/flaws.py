"""Realistic bugs: the reference with one slip in it, by seeded mutation of its syntax tree.

The operators are the classic ones of mutation testing (Offutt et al. 1996, "An experimental
determination of sufficient mutant operators"), and some slips that people make in Python. A mutant
may still be right, or as wrong as another one: running the tests tells.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from copy import deepcopy

Slip = Callable[[ast.AST], Iterator[ast.AST]]
"""What may stand in a node's place by one kind of slip; each is a node of its own."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Div: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
_CONFUSED = dict(
    pair.split()
    for pair in (
        *("max min", "min max", "any all", "all any", "sum max", "sorted list", "append extend"),
        *("lower upper", "upper lower", "swapcase upper", "capitalize upper", "find count"),
        *("title capitalize", "startswith endswith"),
    )
)


LOOPED = 3
"""Most flaws in a `while`: they are apt to make it endless, which takes seconds to find out."""


def flaws(reference: str, seed: str, count: int) -> list[str]:
    """At most `count` codes with one slip each, none equal to another or to the reference.

    Kinds of slips take turns, so that no kind outnumbers the others while these last; slips in a
    `while` come last, LOOPED of them. Layout is that of `plain(reference)`: nothing but the slip
    tells a flawed code from a good one.
    """
    rng, tree = random.Random(seed), ast.parse(reference)
    whiles = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    looped = frozenset(id(inner) for node in whiles for inner in ast.walk(node))
    kinds = [_mutants(tree, slip, looped) for slip in SLIPS]
    for mutants in kinds:
        rng.shuffle(mutants)
    rng.shuffle(kinds)
    longest = max(map(len, kinds))
    turns = [mutants[turn] for turn in range(longest) for mutants in kinds if turn < len(mutants)]
    outside = [code for in_while, code in turns if not in_while]
    inside = list(dict.fromkeys(code for in_while, code in turns if in_while))
    found = dict.fromkeys([*outside, *inside[:LOOPED]])
    found.pop(plain(reference), None)
    return list(found)[:count]


def plain(code: str) -> str:
    """The code in the layout of its syntax tree, without comments."""
    return ast.unparse(ast.parse(code))


def _mutants(tree: ast.Module, slip: Slip, looped: frozenset[int]) -> list[tuple[bool, str]]:
    """The codes that one kind of slip can make of a tree, each with whether it stands in a
    `while`: `looped` are the ids of the nodes that do."""
    places = [(node, new) for node in ast.walk(tree) for new in slip(node)]
    # a copy whose memory already holds another node in the place of one
    return [
        (id(node) in looped, ast.unparse(deepcopy(tree, {id(node): new}))) for node, new in places
    ]


# --- the kinds of slips -------------------------------------------------------------------------


def _comparison(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        ops = [_COMPARED[type(node.ops[0])](), *node.ops[1:]]
        yield ast.Compare(node.left, ops, node.comparators)


def _constant(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
        if node.value > 0:
            yield ast.Constant(node.value - 1)


def _operator(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        yield ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)


def _assignment(node: ast.AST) -> Iterator[ast.AST]:
    """`x += y` becomes `x = y`."""
    if isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value, lineno=node.lineno)


def _logic(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand


def _branch(node: ast.AST) -> Iterator[ast.AST]:
    """An `if` that is forgotten, or one whose else is; so too in a comprehension."""
    if isinstance(node, ast.If):
        yield ast.Pass()
        if node.orelse:
            yield ast.If(node.test, node.body, [])
    if isinstance(node, ast.IfExp):
        yield node.body
    if isinstance(node, ast.comprehension) and node.ifs:
        yield ast.comprehension(node.target, node.iter, [], node.is_async)


def _arguments(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and len(node.args) > 1:
        first, second, *rest = node.args
        yield ast.Call(node.func, [second, first, *rest], node.keywords)


def _return(node: ast.AST) -> Iterator[ast.AST]:
    """A value that is worked out and not returned."""
    if isinstance(node, ast.Return) and node.value is not None:
        yield ast.Expr(node.value)


def _bound(node: ast.AST) -> Iterator[ast.AST]:
    """A range that ends one early."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        place = 0 if len(node.args) == 1 else 1
        short = ast.BinOp(node.args[place], ast.Sub(), ast.Constant(1))
        yield ast.Call(node.func, [*node.args[:place], short, *node.args[place + 1 :]], [])


def _function(node: ast.AST) -> Iterator[ast.AST]:
    """One function for another that is easily mistaken for it."""
    if isinstance(node, ast.Name) and node.id in _CONFUSED:
        yield ast.Name(_CONFUSED[node.id], node.ctx)
    if isinstance(node, ast.Attribute) and node.attr in _CONFUSED:
        yield ast.Attribute(node.value, _CONFUSED[node.attr], node.ctx)


def _call(node: ast.AST) -> Iterator[ast.AST]:
    """A call that is forgotten: `len(set(x))` becomes `len(x)`, `s.strip()` becomes `s`."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Attribute) and not node.args:
        yield node.func.value
    if isinstance(node.func, ast.Name) and len(node.args) == 1:
        yield node.args[0]


def _slice(node: ast.AST) -> Iterator[ast.AST]:
    """A slice that is forgotten, or one without its start or end."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield node.value
    if isinstance(node, ast.Slice):
        if node.lower is not None:
            yield ast.Slice(None, node.upper, node.step)
        if node.upper is not None:
            yield ast.Slice(node.lower, None, node.step)


SLIPS: tuple[Slip, ...] = (
    *(_comparison, _constant, _operator, _assignment, _logic, _branch),
    *(_arguments, _return, _bound, _function, _call, _slice),
)
