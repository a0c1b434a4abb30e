"""Runs in the sandbox, as text: plays the statements of one section on copies of the module.

Nothing in here knows what a document says that they should come to, and nothing of this package is
imported: the child has the standard library only. The statements get copies of library modules that
hold what these offer and no other module, so that no name leads them to this one or to a frame.
"""

from __future__ import annotations

import builtins
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
BY_NAME = ("update_wrapper", "wraps")
"""What functools has that reads and sets attributes by their names."""


def play(
    source: str, name: str, order: list[bool], library: list[str], statements: list[str]
) -> list[list[tuple[str, str]]]:
    """For each play, a pair for each statement: what it printed and evaluated to, what it raised.

    `name` is documented, as `function`, `Class` or `Class.method`. In plays that `order` says are
    spoilt it gives wrong answers to the statements, and to them alone; but for that, all plays are
    the same.
    """
    return [played(source, name, spoilt, library, statements) for spoilt in order]


def played(
    source: str, name: str, spoilt: bool, library: list[str], statements: list[str]
) -> list[tuple[str, str]]:
    """All statements on a fresh copy of the module."""
    module = sys.modules["module"] = types.ModuleType("module")
    exec(compile(source, "<module>", "exec", dont_inherit=True), vars(module))  # noqa: S102
    names = {key: thing for key, thing in vars(module).items() if not key.startswith("_")}
    owner, _, method = name.partition(".")
    if isinstance(names.get(owner), type):
        for inner in [method] if method else [*vars(names[owner])]:
            spoil(names[owner], inner, spoilt)
    elif owner in names:
        names[owner] = wrong(names[owner], spoilt)
    enclose(names, library)
    return [said(statement, names) if statement else ("", "") for statement in statements]


def enclose(names: dict[str, Any], library: list[str]) -> None:
    """Puts copies in the place of modules, and takes out what reads attributes by name."""
    copies = {name: public(__import__(name)) for name in library}

    def imported(name: str, *_: object) -> types.ModuleType:
        return copies[name]

    for key, thing in [*names.items()]:
        if isinstance(thing, types.ModuleType) or getattr(thing, "__name__", "") in BY_NAME:
            names.pop(key)
            if getattr(thing, "__name__", "") in copies:
                names[key] = copies[thing.__name__]
    names["__builtins__"] = {**vars(builtins), "__import__": imported}


def public(module: types.ModuleType) -> types.ModuleType:
    """A copy that has what a module offers, and no other module."""
    copy = types.ModuleType(module.__name__)
    for name in getattr(module, "__all__", dir(module)):
        thing = getattr(module, name)
        if name[0] != "_" and name not in BY_NAME and not isinstance(thing, types.ModuleType):
            setattr(copy, name, thing)
    return copy


def said(statement: str, names: dict[str, Any]) -> tuple[str, str]:
    """The result of one statement, as Python's prompt would show it."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(statement, EXAMPLE, "single", dont_inherit=True), names)  # noqa: S102
    except Exception as error:  # as the last line of a traceback has it
        kind, text = type(error).__qualname__, str(error)
        return "", f"{kind}: {text}" if text else kind
    names["__builtins__"]["_"] = getattr(builtins, "_", None)
    return printed.getvalue()[:MAX_SAID], ""


def spoil(owner: type, name: str, spoilt: bool) -> None:
    """Makes one method or property of a class give wrong answers; leaves data alone."""
    thing = inspect.getattr_static(owner, name)
    changed: Any = None
    if isinstance(thing, property) and thing.fget:
        changed = property(wrong(thing.fget, spoilt), thing.fset, thing.fdel)
    elif isinstance(thing, (staticmethod, classmethod)):
        changed = type(thing)(wrong(thing.__func__, spoilt))
    elif isinstance(thing, functools.cached_property):
        changed = property(wrong(thing.func, spoilt))
    elif isinstance(thing, types.FunctionType) and name not in KEPT:
        changed = wrong(thing, spoilt)
    if changed is not None:
        setattr(owner, name, changed)


def wrong(function: Callable[..., Any], spoilt: bool) -> Callable[..., Any]:
    """The function, if spoilt with another answer where an example calls it; an effect alone is
    lost. It looks the same either way."""
    gives = returns(function)

    @functools.wraps(function)
    def other_answer(*args: Any, **named: Any) -> Any:
        if not spoilt or sys._getframe(1).f_code.co_filename != EXAMPLE:
            return function(*args, **named)
        try:
            return other(function(*args, **named)) if gives else None
        except Exception:
            return None

    return other_answer


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
    """An object of the same class whose attributes have other values; None if there is none."""
    try:
        made = object.__new__(type(value))
        for name, held in vars(value).items():
            object.__setattr__(made, name, other(held))
    except TypeError:
        return None
    return made
