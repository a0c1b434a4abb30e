"""What the text of a condition alone says."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def truth(node: ast.expr) -> bool | None:
    """Whether a condition holds, where its text alone says so."""
    match node:
        case ast.Constant(value=constant):
            return bool(constant)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Dict(values=parts):
            return None if parts else False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = truth(operand)
            return None if inner is None else not inner
        case ast.BoolOp(op=op, values=operands):
            decisive = isinstance(op, ast.Or)
            known = [truth(operand) for operand in operands]
            return decisive if decisive in known else None if None in known else not decisive
        case ast.Compare(ast.Constant(a), [op], [ast.Constant(b)]) if type(op) in _COMPARE:
            try:
                return bool(_COMPARE[type(op)](a, b))
            except TypeError:
                return None
    return None


def checks_validity(node: ast.expr) -> bool:
    """Whether a condition asks if there is a result at all: its truth, None, its type."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=inner) | ast.NamedExpr(value=inner):
            return checks_validity(inner)
        case ast.BoolOp(values=operands):
            return any(map(checks_validity, operands))
        case ast.Compare(comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
    return isinstance(node, ast.Name)


def is_idle(node: ast.If) -> bool:
    """Whether neither way of a condition does anything."""
    return all(
        isinstance(child, ast.Pass)
        or (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
        for child in (*node.body, *node.orelse)
    )
