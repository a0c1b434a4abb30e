"""What a module offers, read from its syntax tree: its public names and what is true of each. Pure.

Public is what a module's `__all__` lists, else every function and class whose name has no leading
underscore, and the public methods and properties of such classes. A class has its constructor's
parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from orchestry import parse_code, unparse_code

Function = ast.FunctionDef | ast.AsyncFunctionDef
_PLAIN = ("int", "float", "str", "bool", "list", "tuple", "set", "dict")
_LONG = {"integer": "int", "string": "str", "boolean": "bool", "dictionary": "dict"}
KINDS = {**dict(zip(_PLAIN, _PLAIN, strict=True)), **_LONG}
"""Types that documents name, by the words that they name them with."""


@dataclass(frozen=True, slots=True)
class Name:
    """One public name; `qualified` is `Class.method` for a method."""

    qualified: str
    kind: str
    """function, class, method or property."""
    params: tuple[str, ...] = ()
    raises: frozenset[str] = frozenset()
    """Exceptions that its own body raises by name."""
    returns: bool = False
    """Whether it returns or yields a value."""
    result: str = ""
    """The kind of what it returns, one of KINDS, where an annotation tells."""
    param_kinds: tuple[tuple[str, str], ...] = ()
    """The kinds of parameters, where annotations tell."""

    @property
    def top(self) -> str:
        """The function or class of the module that it is or belongs to."""
        return self.qualified.partition(".")[0]

    @property
    def short(self) -> str:
        """Its last part, by which it is called."""
        return self.qualified.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Module:
    """A module's source and what it offers."""

    source: str
    names: tuple[Name, ...]
    imported: tuple[tuple[str, str], ...]
    """Names that its imports bind, each with the package that it comes from."""
    raised: frozenset[str]
    """Exceptions that it raises by name anywhere."""
    shown: tuple[str, ...]
    """Its public functions, and classes that have methods or fields: what examples can show."""
    data: frozenset[str]
    """Names that it, or a class in it, binds to data: examples may not touch these."""

    @property
    def tops(self) -> tuple[str, ...]:
        """Its public functions and classes, in order."""
        return tuple(dict.fromkeys(name.top for name in self.names))


@lru_cache(maxsize=256)
def read(source: str) -> Module:
    """The module of a source; one without names where it is no Python."""
    tree = parse_code(source) or ast.Module([], [])
    names = tuple(name for node in tree.body if _listed(node, tree) for name in _names(node))
    bound = tuple(pair for node in tree.body for pair in _bound(node))
    raised = frozenset(error for node in ast.walk(tree) for error in _raises(node))
    passive = {one.name for one in tree.body if isinstance(one, ast.ClassDef) and _is_passive(one)}
    shown = dict.fromkeys(name.top for name in names if name.top not in passive)
    return Module(source, names, bound, raised, tuple(shown), frozenset(_data(tree)))


def _bound(node: ast.stmt) -> Iterator[tuple[str, str]]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            home = node.module or "." if isinstance(node, ast.ImportFrom) else alias.name
            yield (alias.asname or alias.name).partition(".")[0], home.partition(".")[0]


def imports(tree: ast.Module) -> frozenset[str]:
    """The packages that a module imports anywhere; `.` for its own."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            found.add("." if node.level else (node.module or "").partition(".")[0])
    return frozenset(found)


def stripped(source: str) -> str:
    """The source without docstrings; comments and layout stay. Raises SyntaxError."""
    lines: list[str | None] = [*re.split(r"\r\n?|\n", source)]  # where ast counts a line
    for node in ast.walk(ast.parse(source)):
        body = node.body if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)) else []
        for said in filter(_is_text, body):
            start, end = said.lineno - 1, said.end_lineno or said.lineno
            while end < len(lines) and lines[end] == "" and said is body[0]:
                end += 1
            lines[start:end] = [None] * (end - start)
        if body and all(map(_is_text, body)) and not isinstance(node, ast.Module):
            lines[body[0].lineno - 1] = " " * body[0].col_offset + "..."
    return "\n".join(line for line in lines if line is not None).strip("\n") + "\n"


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _text(node: ast.AST) -> str:
    """A part of the module as it would be written; '' for what can't be."""
    return unparse_code(node) or ""


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a text and nothing else: a docstring, or what is said of a name."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _listed(node: ast.stmt, tree: ast.Module) -> bool:
    """Whether a statement defines a public name."""
    if not isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
        return False
    for other in tree.body:
        if isinstance(other, ast.Assign) and _text(other.targets[0]) == "__all__":
            return f"'{node.name}'" in _text(other.value)
    return not node.name.startswith("_")


def _names(node: ast.stmt) -> Iterator[Name]:
    if isinstance(node, _FUNCTIONS):
        yield _named(node, node.name, "function")
    if isinstance(node, ast.ClassDef):
        methods = [inner for inner in node.body if isinstance(inner, _FUNCTIONS)]
        made = [one for one in methods if one.name in ("__init__", "__post_init__")]
        given = [name for one in made for name in _named(one, node.name, "class").params]
        raised = frozenset(error for one in made for error in _raised(one))
        yield Name(node.name, "class", (*_fields(node), *given), raised)
        for method in methods:
            if not method.name.startswith("_") and not _is_setter(method):
                kind = "property" if _is_property(method) else "method"
                yield _named(method, f"{node.name}.{method.name}", kind)


def _is_passive(node: ast.ClassDef) -> bool:
    """Whether a class only names something, as most exceptions and enumerations do."""
    return not _fields(node) and not any(isinstance(inner, _FUNCTIONS) for inner in node.body)


def _fields(node: ast.ClassDef) -> tuple[str, ...]:
    """The fields of a dataclass or named tuple, which its constructor takes."""
    kinds = ("dataclass", "NamedTuple")
    if not any(kind in _text(one) for one in _around(node) for kind in kinds):
        return ()
    fields = [inner for inner in node.body if isinstance(inner, ast.AnnAssign)]
    names = [_text(one.target) for one in fields if "ClassVar" not in _text(one)]
    return tuple(name for name in names if not name.startswith("_"))


def _around(node: ast.ClassDef) -> list[ast.expr]:
    return [*node.decorator_list, *node.bases]


def _named(node: Function, qualified: str, kind: str) -> Name:
    given = node.args
    args = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    static = any("staticmethod" in _text(one) for one in node.decorator_list)
    if kind != "function" and not static:
        args = args[1:]
    params = [arg.arg for arg in (*args, given.vararg, given.kwarg) if arg is not None]
    valued = kind != "class" and any(map(_gives, _own(node)))
    return Name(
        qualified,
        kind,
        params=tuple(name for name in params if not name.startswith("_")),
        raises=frozenset(_raised(node)),
        returns=valued,
        result=_kind(node.returns) if valued else "",
        param_kinds=tuple((arg.arg, found) for arg in args if (found := _kind(arg.annotation))),
    )


def _kind(annotation: ast.expr | None) -> str:
    """The plain type that an annotation names: `list` for `list[int]`, '' for unions and others."""
    if annotation is None:
        return ""
    return KINDS.get(_text(annotation).strip("'").partition("[")[0], "")


def _own(node: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions within."""
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        found = waiting.pop()
        yield found
        if not isinstance(found, (ast.Lambda, ast.ClassDef, *_FUNCTIONS)):
            waiting.extend(ast.iter_child_nodes(found))


def _gives(node: ast.AST) -> bool:
    if isinstance(node, (ast.Yield, ast.YieldFrom)):
        return True
    nothing = isinstance(node, ast.Return) and _text(node) in ("return", "return None")
    return isinstance(node, ast.Return) and not nothing


def _raised(node: Function) -> Iterator[str]:
    for inner in _own(node):
        yield from _raises(inner)


def _raises(node: ast.AST) -> Iterator[str]:
    """The exception that a statement raises, where it names one."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = _text(raised).rpartition(".")[2]
        if name[:1].isupper():
            yield name


def _is_property(node: Function) -> bool:
    return any(_text(one).endswith("property") for one in node.decorator_list)


def _is_setter(node: Function) -> bool:
    endings = (".setter", ".deleter")
    return any(_text(one).endswith(endings) for one in node.decorator_list)


def _data(tree: ast.Module) -> Iterator[str]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in (*tree.body, *(inner for one in classes for inner in one.body)):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in (name for one in targets for name in ast.walk(one)):
            if isinstance(target, ast.Name):
                yield target.id
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
