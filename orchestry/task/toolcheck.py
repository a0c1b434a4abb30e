"""Calls the tools of a team as a model would, with arguments made of their schemas.

Only tools that promise to change nothing (`effects=False`) are called.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from orchestry.core.tools import Tool, ToolContext
from orchestry.core.types import Problem, Tools
from orchestry.task.base import BaseTask

BUGS = ("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError")
"""What Python raises for a mistake in the code, whatever the arguments. Other errors may be meant:
a made-up file does not exist."""


async def tool_faults(
    task: BaseTask[Any], tools: Tools, problem: Problem, seed: int
) -> AsyncIterator[str]:
    """What is wrong with each tool that can be called in the first state of a problem."""
    state = task.reset(problem, seed)
    for spec in task.agents:
        here = ToolContext(spec.role, problem, tools.sandbox, state)
        for one in spec.every_tool:
            if not one.spec.description:
                yield f"'{one.spec.name}' of '{spec.role}' has no docstring"
            elif not one.effects and (fault := await _fault(one, here)):
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
        if several in schema:
            return example(schema[several][0], whole)
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
    return "a" * max(1, schema.get("minLength", 1))


def _number(schema: Mapping[str, Any]) -> Any:
    """1, or the number nearest to it within the limits."""
    least = max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
    most = min(schema.get("maximum", least), schema.get("exclusiveMaximum", least + 1) - 1)
    return min(least, most)
