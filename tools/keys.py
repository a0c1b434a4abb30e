"""Every config key with its explanation, kind, limits and default, read from RunConfig's source."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from orchestry.core.config import RunConfig
from orchestry.core.types import Frozen

Schema = Mapping[str, Any]
PLACEHOLDERS = {"agents": "ROLE", "prices": "MODEL"}
"""Sections that are mappings, and what their own keys are."""
NOUNS = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "object": "mapping",
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section; `kind` says what it takes and `default` what it is unless set."""

    name: str
    line: str
    kind: str
    default: str


@dataclass(frozen=True, slots=True)
class Section:
    """Keys under one dotted name, "" for the top level, with what they are about."""

    name: str
    line: str
    keys: tuple[Key, ...]


def sections() -> list[Section]:
    """The top level, then every section in the order of RunConfig."""
    return list(_walk("", RunConfig, set()))


def explanations(model: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field, by field; "" where there is none."""
    body = _definition(model).body
    found = dict.fromkeys(model.model_fields, "")
    for field, after in pairwise(body):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def _definition(model: type[BaseModel]) -> ast.ClassDef:
    module = ast.parse(inspect.getsource(model))
    assert isinstance(module.body[0], ast.ClassDef), model
    return module.body[0]


def _walk(name: str, model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[Section]:
    """This model's section, then those of its fields that are models not `seen` before."""
    seen.add(model)
    lines, schema = explanations(model), model.model_json_schema()
    keys: list[Key] = []
    below: list[tuple[str, type[BaseModel]]] = []
    for field, info in model.model_fields.items():
        key = info.alias or field
        inner, path = model_in(schema["properties"][key]), _below(name, key)
        if inner and inner not in seen:
            below.append((path, inner))
        else:
            keys.append(_key(key, lines[field], schema["properties"][key], info.is_required()))
    yield Section(name, inspect.cleandoc(model.__doc__ or ""), tuple(keys))
    for path, inner in below:
        yield from _walk(path, inner, seen)


def _below(name: str, key: str) -> str:
    path = f"{name}.{key}" if name else key
    return f"{path}.{PLACEHOLDERS[path]}" if path in PLACEHOLDERS else path


def model_in(schema: Schema) -> type[BaseModel] | None:
    """The model that a field holds, or maps names to."""
    values = schema.get("additionalProperties")
    holder = values if isinstance(values, Mapping) else schema
    refs = [part["$ref"] for part in (holder, *holder.get("anyOf", ())) if "$ref" in part]
    models = {model.__name__: model for model in Frozen.__subclasses__()}
    return models[refs[0].rpartition("/")[2]] if refs else None


def _key(name: str, line: str, schema: Schema, required: bool) -> Key:
    default = "" if required else json.dumps(schema.get("default", {}))
    return Key(name, line, _kind(schema), default)


def _kind(schema: Schema) -> str:
    """What a key takes, in words."""
    if "$ref" in schema:
        model: str = schema["$ref"].rpartition("/")[2]
        return f"keys as in {model.removesuffix('Config').lower()}"
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"])
    if "enum" in schema:
        *most, last = schema["enum"]
        return f"{', '.join(most)} or {last}"
    if schema.get("type") == "array":
        return f"list of: {_kind(schema['items'])}"
    if schema.get("format") == "path":
        return "path"
    return f"{NOUNS[schema['type']]} {_limits(schema)}".strip()


def _limits(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f"from {_number(least)} to {_number(most)}"
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    found = [f"{word} {_number(schema[name])}" for name, word in words.items() if name in schema]
    return " and ".join(found)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"
