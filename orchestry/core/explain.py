"""What is wrong with a config, in the words of the person who wrote it: key, found, and the fix.

Pydantic names its own types; a reader of YAML knows keys, numbers and lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestry.core.errors import unknown

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
    return [".".join([*prefix, f.alias or key]) for key, f in model.model_fields.items()]


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
