"""Runs in the sandbox, as text: plays the statements of one section on a copy of the module.

Nothing in here knows what a document says that they should come to, and nothing of this package is
imported: the child has the standard library only.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import io
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

MAX_SAID = 2000
"""Characters of what one statement said."""
EXAMPLE = "<example>"
KEPT = ("__new__", "__init_subclass__", "__class_getitem__", "__setattr__", "__delattr__")
"""Methods without which no instance can be made; the others are spoilt with their class."""


def play(source: str, spoilt: str, statements: list[str]) -> list[tuple[str, str]]:
    """A pair for each statement: what it printed and evaluated to, and what it raised.

    `spoilt` names what is to give wrong answers to the statements, and to them alone, as
    `function`, `Class` or `Class.method`; nothing where it is empty.
    """
    module = sys.modules["module"] = types.ModuleType("module")
    exec(compile(source, "<module>", "exec", dont_inherit=True), vars(module))  # noqa: S102
    names = {name: thing for name, thing in vars(module).items() if not name.startswith("_")}
    owner, _, method = spoilt.partition(".")
    if isinstance(names.get(owner), type):
        for inner in [method] if method else [*vars(names[owner])]:
            spoil(names[owner], inner)
    elif owner in names:
        names[owner] = wrong(names[owner])
    return [said(statement, names) if statement else ("", "") for statement in statements]


def said(statement: str, names: dict[str, Any]) -> tuple[str, str]:
    """What one statement came to, as Python's prompt would show it."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(statement, EXAMPLE, "single", dont_inherit=True), names)  # noqa: S102
    except Exception as error:  # as the last line of a traceback has it
        kind, text = type(error).__qualname__, str(error)
        return "", f"{kind}: {text}" if text else kind
    return printed.getvalue()[:MAX_SAID], ""


def spoil(owner: type, name: str) -> None:
    """Makes one method or property of a class give wrong answers; leaves data alone."""
    thing = inspect.getattr_static(owner, name)
    changed: Any = None
    if isinstance(thing, property) and thing.fget:
        changed = property(wrong(thing.fget), thing.fset, thing.fdel)
    elif isinstance(thing, (staticmethod, classmethod)):
        changed = type(thing)(wrong(thing.__func__))
    elif isinstance(thing, functools.cached_property):
        changed = property(wrong(thing.func))
    elif isinstance(thing, types.FunctionType) and name not in KEPT:
        changed = wrong(thing)
    if changed is not None:
        setattr(owner, name, changed)


def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with another answer where an example calls it; an effect alone is lost."""
    gives = returns(function)

    @functools.wraps(function)
    def spoilt(*args: Any, **named: Any) -> Any:
        if sys._getframe(1).f_code.co_filename != EXAMPLE:
            return function(*args, **named)
        try:
            return other(function(*args, **named)) if gives else None
        except Exception:
            return None

    return spoilt


def returns(function: Callable[..., Any]) -> bool:
    """Whether its code can give anything but None; True where there is no telling."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return True
    steps = [*dis.get_instructions(code)]
    for before, step in zip([None, *steps], steps, strict=False):
        loaded = before if step.opname == "RETURN_VALUE" else step
        if step.opname.startswith("RETURN_") and step.opname != "RETURN_GENERATOR":
            constant = loaded is not None and loaded.opname in ("LOAD_CONST", "RETURN_CONST")
            if not (constant and loaded is not None and loaded.argval is None):
                return True
    return False


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "?"
    if isinstance(value, list):
        return [*value, None]
    if isinstance(value, tuple):
        made = getattr(type(value), "_make", None)  # of a named tuple
        return made(map(other, value)) if made else (*value, None)
    if isinstance(value, dict):
        return {**value, "?": None}
    if isinstance(value, (set, frozenset)):
        return value | {"?"}
    if hasattr(value, "__next__"):
        return itertools.chain([None], value)
    if isinstance(value, types.FunctionType):
        return lambda *args, **named: other(value(*args, **named))
    return twin(value)


def twin(value: Any) -> Any:
    """An object of the same class whose attributes have other values; None where there is none."""
    try:
        made = object.__new__(type(value))
        for name, held in vars(value).items():
            object.__setattr__(made, name, other(held))
    except TypeError:
        return None
    return made
