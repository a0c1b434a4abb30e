"""How main works with aux where that fits none of the four schemes, by the structure of its calls.

A decorator in the narrow sense asks aux at one place and works on what it asks or gets. `scheme_of`
also says decorator of all else that is left over. What asks aux at several places, outside of
loops, is a way of its own: it is named by what is done with the answers, so that all programs of
one structure have one name. There are 33 names, whatever the models write.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .reading import Reading, called

CHAINED, APART = "chained", "apart"
_JOINS: tuple[tuple[str, tuple[type[ast.AST], ...]], ...] = (
    ("compared", (ast.Compare,)),
    ("computed", (ast.BinOp, ast.AugAssign)),
    ("decided", (ast.BoolOp,)),
    ("collected", (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.JoinedStr)),
    ("handed_on", (ast.Call,)),
)
"""What brings several answers together, by the syntax nodes that do it."""


def novel_of(reading: Reading) -> str:
    """The name of the structure; '' for a decorator in the narrow sense. For a code whose scheme is
    `decorator`.

    chained: an answer goes into another question, `aux(aux(x))`. compared, computed, decided,
    collected, handed_on: answers to several questions meet in a comparison, in arithmetic, in `and`
    and `or`, in a list or text, or as arguments of one call; several of these are joined by `_`.
    apart: they never meet (`aux(a) if x else aux(b)`).
    """
    asked = [n for n in reading.reached if isinstance(n, ast.Call) and called(n) in reading.askers]
    if len(asked) < 2:
        return ""
    if any(map(reading.carries, (part for call in asked for part in _arguments(call)))):
        return CHAINED
    found = [name for name, kinds in _JOINS if any(_meet(reading, n) for n in _of(reading, kinds))]
    return "_".join(found) or APART


def _of(reading: Reading, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    return (node for node in reading.reached if isinstance(node, kinds))


def _arguments(call: ast.Call) -> Sequence[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _meet(reading: Reading, node: ast.AST) -> bool:
    """Whether two parts of a node may each depend on an answer."""
    parts = _arguments(node) if isinstance(node, ast.Call) else [*ast.iter_child_nodes(node)]
    return sum(map(reading.carries, parts)) > 1
