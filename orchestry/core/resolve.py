"""What a config's fields say of their keys: marks, faults in the user's words, and no secrets.

Pydantic names its own types; a reader of YAML knows keys, numbers and lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestry.core.errors import ConfigError, unknown


class Mark(Enum):
    """What a field says of its key, or of its whole section, as `Annotated[..., Mark.X]`."""

    RESUMABLE = "a resume may change it: nothing that was played or learned depends on it"
    MOVABLE = "a path that may move: the run has a copy, or finds what lay there by its content"
    MEASURED = "it decides what an evaluation measures"
    OPERATIONAL = "how, where and at what cost the run is executed: no result depends on it"
    ADDRESS = "an address: one with a user, password or query is refused"


@cache
def marks(root: type[BaseModel], key: str) -> frozenset[Mark]:
    """The marks of a dotted key: its own and those of the sections that it lies in."""
    found, model = set[Mark](), root
    for name in key.split("."):
        field = _fields(model).get(name)
        if field is None:  # a name of the user's: agents.<role>, prices.<model>
            continue
        found |= _own(field)
        inner = _model_in(field.annotation)
        if inner is None:
            break
        model = inner
    return frozenset(found)


def marked(root: type[BaseModel], mark: Mark, above: str = "") -> Iterator[str]:
    """The dotted keys and whole sections with that mark; NAME stands for a name of the user's."""
    for name, field in _fields(root).items():
        inner = _model_in(field.annotation)
        if mark in _own(field):
            yield f"{above}{name}"
        elif inner is not None:
            named = "" if inner in (field.annotation, *_optional(field.annotation)) else ".NAME"
            yield from marked(inner, mark, f"{above}{name}{named}.")


def leaves(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys, dotted, with their values; an empty section has none.

    >>> dict(leaves({"learn": {"every": 4}, "seed": 0, "weights": {}}))
    {'learn.every': 4, 'seed': 0}
    """
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """By the names that a file has."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _own(field: FieldInfo) -> set[Mark]:
    return {item for item in field.metadata if isinstance(item, Mark)}


_LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|pk)-[\w-]{12,}")


def looks_like_key(text: str) -> bool:
    """Whether a text may hold an API key, and so may be neither shown nor written."""
    return _LOOKS_LIKE_KEY.search(text) is not None


def refuse_secrets(value: Any, root: type[BaseModel], key: str = "") -> None:
    """Raises ConfigError for plain data that holds an API key, or a password in an address."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            refuse_secrets(str(name), root, key)
            refuse_secrets(inner, root, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            refuse_secrets(inner, root, key)
    elif isinstance(value, str) and looks_like_key(value):
        raise ConfigError(
            f"config key '{key}' holds what looks like an API key: no config key takes one; "
            "export ANTHROPIC_API_KEY or OPENAI_API_KEY instead"
        )
    elif isinstance(value, str) and set("@?") & set(value) and Mark.ADDRESS in marks(root, key):
        raise ConfigError(
            f"config key '{key}' holds a user, password or query, and would be written to disk: "
            "give the bare address"
        )


_HOLDS_KEYS = ("model_type", "model_attributes_type", "dict_type", "mapping_type")
_FIXES = {
    "finite_number": "give a finite number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "int_type": "give a whole number",
    "int_parsing": "give a whole number",
    "int_parsing_size": "give a smaller number",
    "int_from_float": "give a whole number",
    "bool_type": "give true or false",
    "bool_parsing": "give true or false",
    "literal_error": "give {expected}",
    "string_type": "give a text, in quotes where it looks like a number",
    "string_too_long": "give at most {max_length} characters",
    "tuple_type": "give a list, such as [a, b]",
    "path_type": "give a path",
}
"""By pydantic's type of error."""
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_LONGEST = 80
"""Characters of what was found that a message repeats."""


def explain(fault: Mapping[str, Any], root: type[BaseModel]) -> str:
    """One pydantic error of a `root` model, in one line."""
    path = [str(part) for part in fault["loc"]]
    key, kind, context = ".".join(path), fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown("config key", key, _keys_beside(root, path))
    if kind == "missing":
        return f"config key '{key}' is missing: give it too"
    if kind in _HOLDS_KEYS:
        fix = f"it holds keys, such as {_inside(root, path)}"
    elif _BOUNDS.keys() & context.keys():
        fix = f"give a number {_bounds(root, path, context)}"
    elif kind in _FIXES:
        fix = _FIXES[kind].format(**context)
    else:
        fix = fault["msg"].removeprefix("Value error, ")
    found = repr(fault["input"])
    found = found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
    return f"config key '{key}' is {found}: {fix}"


def _bounds(root: type[BaseModel], path: Sequence[str], context: Mapping[str, Any]) -> str:
    """All bounds of a field where it has them itself, else the one that was passed."""
    field = _field(root, path)
    limits = {
        name: getattr(item, name)
        for item in (field.metadata if field else ())
        for name in _BOUNDS
        if hasattr(item, name)
    }
    named = (limits or context).items()
    return " and ".join(f"{_BOUNDS[name]} {limit:.15g}" for name, limit in named if name in _BOUNDS)


def _field(root: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """The field at that path; None for a value of a mapping or of a list."""
    model: type[BaseModel] | None = root
    for name in path[:-1]:
        if model is not None and name in model.model_fields:
            model = _model_in(model.model_fields[name].annotation)
    return model.model_fields.get(path[-1]) if model is not None and path else None


def _keys_beside(root: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The known keys at the place where an unknown one was found, dotted."""
    model, prefix = root, list[str]()
    for name in path[:-1]:
        prefix.append(name)
        if name not in model.model_fields:  # a key of a mapping: agents.<role>, prices.<model>
            continue
        inner = _model_in(model.model_fields[name].annotation)
        if inner is None:
            return []
        model = inner
    return [".".join([*prefix, name]) for name in _fields(model)]


def _inside(root: type[BaseModel], path: Sequence[str]) -> str:
    """A key below that path, with a value where one is plain: judge.enabled=true."""
    model: type[BaseModel] | None = root
    named = True
    for name in path:
        if model is None or name not in model.model_fields:
            named = True
            continue
        annotation = model.model_fields[name].annotation
        inner = _model_in(annotation)
        named = inner is not None and inner in (annotation, *_optional(annotation))
        model = inner
    prefix = ".".join([*path, *([] if named else ["NAME"])])
    if model is None:
        return f"{prefix}=VALUE"
    name, field = next(iter(model.model_fields.items()))
    return f"{prefix}.{field.alias or name}={_value(field)}"


def _optional(annotation: Any) -> tuple[Any, ...]:
    """The types of `X | None`; () for a mapping, whose values have names of their own."""
    return get_args(annotation) if type(None) in get_args(annotation) else ()


def _value(field: FieldInfo) -> str:
    """A value that the field takes, as YAML."""
    if bool in (field.annotation, *get_args(field.annotation)):
        return "true"
    plain = isinstance(field.default, str | int | float)
    return str(field.default) if plain else "VALUE"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, directly or as the values of a mapping."""
    candidates = (annotation, *get_args(annotation))
    return next(
        (c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)),
        None,
    )
