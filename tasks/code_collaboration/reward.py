"""The four parts of the reward, each a number in [0, 1]. Pure; the programs have already been run.

In the manner of MAGRPO (Liu et al. 2025, arXiv:2508.04652), whose code reward has these four
levels; how cooperation is measured is our own, since theirs is fooled by the text `aux(`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from orchestry import parse_code

from .program import AUX, Program, defined
from .usage import Usage, is_shadowed

FULL_DROP = 0.4
"""The share of the team's success that must go with aux for cooperation to be whole."""
_PRYING_CALLS = frozenset(("globals", "locals", "eval", "exec", "__import__"))
_PRYING_MODULES = frozenset(("inspect", "gc", "dis", "ctypes", "traceback", "importlib"))
_PRYING_NAMES = frozenset(
    [
        "__code__",
        "__globals__",
        "__closure__",
        "__builtins__",
        "__dict__",
        "__getattribute__",
        "_getframe",
        "modules",
        "redirect_stdout",
    ]
)
_LOOKING = frozenset(
    [
        "repr",
        "str",
        "ascii",
        "bytes",
        "format",
        "format_map",
        "print",
        "id",
        "hash",
        "type",
        "dir",
        "vars",
        "getattr",
        "hasattr",
        "isinstance",
        "issubclass",
        "signature",
        "getsource",
    ]
)
"""Functions that show something of a function that they are given."""


def structure(program: Program, entry_point: str) -> float:
    """Half for each of the two functions that its author defines at the top level."""
    done = (defined(program.helper, AUX), defined(program.main, entry_point))
    return 0.5 * sum(function is not None for function in done)


def syntax(program: Program) -> float:
    """Half for each code that is valid Python; no code is none."""
    return 0.5 * sum(map(is_valid, (program.helper, program.main)))


def is_valid(code: str) -> bool:
    """Whether there is code, and it parses."""
    tree = parse_code(code)
    return tree is not None and bool(tree.body)


def quality(passed: int, total: int, chance: int) -> float:
    """Share of tests passed beyond the `chance` ones that a constant answer passes."""
    if chance >= total:  # tests that a constant answer passes tell nothing else apart
        return float(0 < total == passed)
    return max(0.0, (passed - chance) / (total - chance))


def cooperation(honest: float, stubbed: Sequence[float]) -> float:
    """How much of the quality goes when aux is replaced by the most successful of its stubs.

    Relative to the quality with aux, whole from FULL_DROP on; 0 where there is nothing to lose.
    """
    if honest <= 0.0 or not stubbed:
        return 0.0
    drop = (honest - max(stubbed)) / honest
    return min(1.0, max(0.0, drop) / FULL_DROP)


def objection(program: Program, entry_point: str, usage: Usage) -> str:
    """Why there is no cooperation whatever running may show, in words; '' where there may be."""
    if defined(program.helper, AUX) is None:
        return "the helper defines no aux"
    if defined(program.main, entry_point) is None:
        return f"main defines no {entry_point}"
    faults = {
        "main puts something else in the place of aux": usage.shadowed,
        "main does not call aux": not usage.calls,
        "main uses nothing that aux returns, but for constants": not usage.used,
        "main is a thin wrapper around aux": usage.thin,
        "main looks into aux instead of calling it": pries(program.main),
    }
    return next((fault for fault, holds in faults.items() if holds), "")


def pries(main: str) -> bool:
    """Whether a code could tell a stub from the helper by other means than calling it.

    Aux may be called, and handed to a function that calls it; nothing else.
    """
    tree = parse_code(main)
    if tree is None:
        return False
    nodes = [*ast.walk(tree)]
    printed = not is_shadowed(tree, "print")
    right = {id(name) for node in nodes for name in _rightly(node, printed)}
    return any(_pries(node) or (_is_aux(node) and id(node) not in right) for node in nodes)


def _is_aux(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == AUX


def _rightly(node: ast.AST, printed: bool) -> list[ast.expr]:
    """What a call calls, is given, or only prints."""
    match node:
        case ast.Expr(ast.Call(ast.Name("print"), args, [])) if printed:
            return [arg.value if isinstance(arg, ast.Attribute) else arg for arg in args]
        case ast.Call(func, args, keywords):
            name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
            given = [] if name in _LOOKING else [*args, *(keyword.value for keyword in keywords)]
            return [func, *given]
    return []


def _pries(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in _PRYING_NAMES or name in _PRYING_CALLS
        case ast.Name(id=name, ctx=ast.Load()):
            return name in _PRYING_CALLS or name == "__builtins__"
        case ast.Constant(value=str(text)):
            return text in _PRYING_NAMES and text.startswith("_")
        case ast.Call(func=ast.Name(id="vars"), args=[]):
            return True
        case ast.Import(names=names):
            return any(name.name.partition(".")[0] in _PRYING_MODULES for name in names)
        case ast.ImportFrom(module=module, names=names):
            taken = {name.name for name in names}
            package = (module or "").partition(".")[0]
            return package in _PRYING_MODULES or bool(taken & (_PRYING_NAMES | _PRYING_CALLS))
    return False
