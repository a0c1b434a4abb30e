"""Calls the tools of a team as a model would, with arguments made of their schemas.

Only tools that promise to change nothing (`effects=False`) are called.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from orchestry.core.errors import TaskError
from orchestry.core.tools import Tool, ToolContext
from orchestry.core.types import Problem, Tools
from orchestry.task.arrangements import unwrapped
from orchestry.task.base import BaseTask

BUGS = (
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "NameError",
    "TypeError",
    "UnboundLocalError",
)
"""What Python raises for a mistake in the code, whatever the arguments. Other errors may be meant:
a made-up file does not exist."""


def silent_tools(task: BaseTask[Any]) -> Iterator[str]:
    """The tools without a docstring, by which a model knows what they do."""
    for spec in task.agents:
        for one in spec.every_tool:
            if not one.spec.description:
                yield f"'{one.spec.name}' of '{spec.role}' has no docstring"


@dataclass(frozen=True, slots=True)
class ToolFinding:
    """What a call of a tool showed."""

    text: str
    fault: bool = True
    """False: only that the tool refused its arguments, and so was not called."""


async def tool_findings(
    task: BaseTask[Any], tools: Tools, game: Sequence[tuple[Problem, Any]]
) -> AsyncIterator[ToolFinding]:
    """What is wrong with each tool that is called where its agent first acts in a game's states,
    and which of them refused their arguments."""
    called = set[str]()
    for problem, state in game:
        for spec in task.agents:
            if spec.role in called or spec.role not in task.to_act(state):
                continue
            called.add(spec.role)
            here = ToolContext(spec.role, problem, tools.sandbox, unwrapped(state))
            for one in spec.every_tool:
                if not one.effects and (found := await _finding(one, here)):
                    yield replace(found, text=f"'{one.spec.name}' of '{spec.role}' {found.text}")


async def _finding(one: Tool, here: ToolContext) -> ToolFinding | None:
    schema = one.spec.parameters
    try:
        given = example(schema, schema)
    except TaskError as error:
        return ToolFinding(f"can't be called: {error}")
    result = await one.use(json.dumps(given), here)
    if result.startswith(wrong := f"error: wrong arguments of {one.spec.name}: "):
        return ToolFinding(f"refused {given} ({result.removeprefix(wrong)})", fault=False)
    if result.startswith(f"error: {one.spec.name} took more than"):
        late = result.removeprefix(f"error: {one.spec.name} ")
        return ToolFinding(f"{late}, called with {given}")
    if result.startswith(tuple(f"error: {name}" for name in BUGS)):
        return ToolFinding(f"raised {result.removeprefix('error: ')}, called with {given}")
    return None


def example(
    schema: Mapping[str, Any] | bool, whole: Mapping[str, Any], within: tuple[str, ...] = ()
) -> Any:
    """A small value of a JSON schema as pydantic writes it, or as near as can be told from it;
    `whole` holds what it refers to, and `within` are the references that led here.

    Raises TaskError for a reference that leads nowhere in `whole`, or into itself.
    """
    if isinstance(schema, bool):  # anything at all
        return "1"
    if "$ref" in schema:
        pointer = schema["$ref"]
        return example(_referred(pointer, whole, within), whole, (*within, pointer))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:  # null first, or a type that holds itself would never end
            parts = sorted(schema[several], key=lambda one: one.get("type") != "null")
            return example(parts[0], whole, within)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        parts, needed = schema.get("properties", {}), schema.get("required", ())
        return {name: example(parts.get(name, {}), whole, within) for name in needed}
    if kind == "array":
        parts = schema.get("prefixItems") or [schema.get("items", {})] * schema.get("minItems", 0)
        return [example(part, whole, within) for part in parts]
    if kind in ("integer", "number"):
        return _number(schema, kind)
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return "1" * max(1, schema.get("minLength", 1))


def _referred(pointer: str, whole: Mapping[str, Any], within: Sequence[str]) -> Any:
    """What a JSON pointer names, such as `#/definitions/Place`: RFC 6901."""
    if pointer in within:
        raise TaskError(f"its schema needs '{pointer}' within itself, so no arguments are of it")
    found: Any = whole
    start, *parts = pointer.split("/")
    try:
        if start != "#":
            raise LookupError
        for part in parts:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found[int(key) if isinstance(found, list) else key]
        return found
    except (LookupError, TypeError, ValueError):
        raise TaskError(f"its schema refers to '{pointer}', which is no part of it") from None


def _number(schema: Mapping[str, Any], kind: str) -> Any:
    """A number within the limits: 1 where they allow it."""
    step = 1 if kind == "integer" else 1e-3
    least = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + step)
    most = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - step)
    return min(max(1, least), most)
