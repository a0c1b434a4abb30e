"""Whether main's code looks into aux instead of calling it: a stub shows in other ways too."""

from __future__ import annotations

import ast

from .reading import Reading, called

_MODULES = frozenset(("inspect", "gc", "dis", "ctypes", "traceback", "importlib"))
_CALLS = frozenset(("globals", "locals", "eval", "exec", "__import__"))
_NAMES = frozenset(
    ("__code__", "__globals__", "__closure__", "__builtins__", "__dict__", "__getattribute__")
) | frozenset(("_getframe", "modules", "redirect_stdout"))
_LOOKING = frozenset(
    ("repr", "str", "ascii", "bytes", "format", "format_map", "print", "id", "hash", "type")
) | frozenset(("dir", "vars", "getattr", "hasattr", "isinstance", "signature", "getsource"))
"""Functions that show something of a function that they are given."""


def pries(tree: ast.Module, reading: Reading) -> bool:
    """Whether a code could tell a stub from the helper by other means than calling it.

    Aux may be called, handed to a function that calls it, and printed; nothing else.
    """
    nodes = [*ast.walk(tree)]
    right = {id(part) for node in nodes for part in _rightly(node, "print" not in reading.bound)}
    uses = (n for n in nodes if isinstance(n, ast.Name) and n.id in reading.aliases)
    misused = any(id(use) not in right for use in uses if isinstance(use.ctx, ast.Load))
    return misused or any(map(_pries, nodes))


def _pries(node: ast.AST) -> bool:
    """Whether this is a way to functions other than by their names."""
    match node:
        case ast.Attribute(attr=name):
            return name in _NAMES or name in _CALLS
        case ast.Name(id=name, ctx=ast.Load()):
            return name in _CALLS or name == "__builtins__"
        case ast.Assign(value=ast.Name(id=name)):
            return name in _LOOKING
        case ast.Constant(value=str(text)):
            return text in _NAMES and text.startswith("_")
        case ast.Call(func=ast.Name(id="vars"), args=[]):
            return True
        case ast.Import(names=names):
            return any(name.name.partition(".")[0] in _MODULES for name in names)
        case ast.ImportFrom(module=module, names=names):
            taken = {name.name for name in names}
            return (module or "").partition(".")[0] in _MODULES or bool(taken & (_NAMES | _CALLS))
    return False


def _rightly(node: ast.AST, printed: bool) -> list[ast.expr]:
    """The parts of a statement or call that may be aux: what is called, passed to a function that
    calls it, printed, given a second name, or only mentioned."""
    match node:
        case ast.Expr(ast.Call(ast.Name("print"), args, [])) if printed:
            return [arg.value if isinstance(arg, ast.Attribute) else arg for arg in args]
        case ast.Assign([ast.Name()], value) | ast.Expr(ast.Name() as value):
            return [value]
        case ast.Call(func, args, keywords):
            looks = called(node) in _LOOKING
            return [func, *([] if looks else [*args, *(keyword.value for keyword in keywords)])]
    return []
