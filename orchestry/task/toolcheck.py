"""Calls the tools of a team as a model would, with arguments made of their schemas.

Only tools that promise to change nothing (`effects=False`) are called.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

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


async def tool_faults(
    task: BaseTask[Any], tools: Tools, game: Sequence[tuple[Problem, Any]]
) -> AsyncIterator[str]:
    """What is wrong with each tool that is called where its agent first acts in a game's states."""
    called = set[str]()
    for problem, state in game:
        for spec in task.agents:
            if spec.role in called or spec.role not in task.to_act(state):
                continue
            called.add(spec.role)
            here = ToolContext(spec.role, problem, tools.sandbox, unwrapped(state))
            for one in spec.every_tool:
                if not one.effects and (fault := await _fault(one, here)):
                    yield f"'{one.spec.name}' of '{spec.role}' {fault}"


async def _fault(one: Tool, here: ToolContext) -> str | None:
    schema = one.spec.parameters
    given = example(schema, schema)
    result = await one.use(json.dumps(given), here)
    if result.startswith(f"error: {one.spec.name} took more than"):
        return f"{result.removeprefix(f'error: {one.spec.name} ')}, called with {given}"
    if result.startswith(tuple(f"error: {name}" for name in BUGS)):
        return f"raised {result.removeprefix('error: ')}, called with {given}"
    return None


def example(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """A small value of a JSON schema as pydantic writes it, or as near as can be told from it;
    `whole` holds the definitions that it names."""
    if "$ref" in schema:
        return example(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:  # null first, or a type that holds itself would never end
            parts = sorted(schema[several], key=lambda one: one.get("type") != "null")
            return example(parts[0], whole)
    kind = schema.get("type")
    if kind == "object":
        parts = schema.get("properties", {})
        return {name: example(parts[name], whole) for name in schema.get("required", ())}
    if kind == "array":
        parts = schema.get("prefixItems") or [schema.get("items", {})] * schema.get("minItems", 0)
        return [example(part, whole) for part in parts]
    if kind in ("integer", "number"):
        return _number(schema)
    if kind in ("boolean", "null"):
        return True if kind == "boolean" else None
    return "1" * max(1, schema.get("minLength", 1))


def _number(schema: Mapping[str, Any]) -> Any:
    """A number within the limits: 1 where they allow it."""
    step = 1 if schema["type"] == "integer" else 1e-3
    least = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + step)
    most = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - step)
    return min(max(1, least), most)
