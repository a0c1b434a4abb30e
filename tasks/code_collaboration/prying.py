"""Whether main's code looks into aux instead of calling it: a stub shows in other ways too."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from orchestry import parse_code

from .calls import called_name
from .program import AUX
from .usage import is_shadowed

_MODULES = frozenset(("inspect", "gc", "dis", "ctypes", "traceback", "importlib"))
_CALLS = frozenset(("globals", "locals", "eval", "exec", "__import__"))
_NAMES = frozenset(
    ("__code__", "__globals__", "__closure__", "__builtins__", "__dict__", "__getattribute__")
) | frozenset(("_getframe", "modules", "redirect_stdout"))
_LOOKING = frozenset(
    ("repr", "str", "ascii", "bytes", "format", "format_map", "print", "id", "hash", "type")
) | frozenset(("dir", "vars", "getattr", "hasattr", "isinstance", "signature", "getsource"))
"""Functions that show something of a function that they are given."""
_Holder = tuple[ast.AST, str]
"""Where a name stands for aux: in the module, or in a function that was handed it."""


def pries(main: str) -> bool:
    """Whether a code could tell a stub from the helper by other means than calling it.

    Aux may be called, and handed to a function that calls it; nothing else.
    """
    tree = parse_code(main)
    if tree is None:
        return False
    if any(map(_pries, ast.walk(tree))):
        return True
    printed = not is_shadowed(tree, "print")
    return any(_misused(scope, name, printed) for scope, name in _holders(tree))


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


def _misused(scope: ast.AST, name: str, printed: bool) -> bool:
    """Whether a name is anything else there than called, handed on or only printed."""
    nodes = [*ast.walk(scope)]
    right = {id(part) for node in nodes for part in _rightly(node, printed)}
    uses = (n for n in nodes if isinstance(n, ast.Name) and n.id == name)
    return any(id(use) not in right for use in uses if isinstance(use.ctx, ast.Load))


def _rightly(node: ast.AST, printed: bool) -> list[ast.expr]:
    """What a call calls, is given, or only prints, and what gets a second name."""
    match node:
        case ast.Expr(ast.Call(ast.Name("print"), args, [])) if printed:
            return [arg.value if isinstance(arg, ast.Attribute) else arg for arg in args]
        case ast.Assign([ast.Name()], value):
            return [value]
        case ast.Call(func, args, keywords):
            looks = called_name(node) in _LOOKING
            return [func, *([] if looks else [*args, *(keyword.value for keyword in keywords)])]
    return []


def _holders(tree: ast.Module) -> list[_Holder]:
    """Every scope and name that aux may have, from call to call of main's own functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found: list[_Holder] = [(tree, AUX)]
    for scope, name in found:  # which grows meanwhile
        more = dict.fromkeys(_passed_on(scope, name, functions))
        found += [holder for holder in more if holder not in found]
    return found


def _passed_on(scope: ast.AST, name: str, functions: list[ast.FunctionDef]) -> Iterator[_Holder]:
    """Where what has that name in a scope gets another one: a second name, or a parameter."""
    for node in ast.walk(scope):
        match node:
            case ast.Assign([ast.Name(id=other)], ast.Name(id=first)) if first == name:
                yield scope, other
            case ast.Call(ast.Name(id=callee), args, keywords):
                for function in (f for f in functions if f.name == callee):
                    spec = function.args
                    parameters = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
                    given = [*zip(parameters, args, strict=False)]
                    given += [(k.arg, k.value) for k in keywords if k.arg]
                    same = (p for p, v in given if isinstance(v, ast.Name) and v.id == name)
                    yield from ((function, parameter) for parameter in same)
