"""Structured outputs as the loopback server knows them: the schema asked for, checked as the
vendors check it, and an answer that keeps to it and follows from the request alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from orchestry.models.fake import instance

_CLAUDE_REFUSES = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "maxItems", "uniqueItems"),
}


class SchemaError(ValueError):
    """A schema that the vendor answers 400 to."""


def schema_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that a Messages or chat request asks to be answered by; None for prose."""
    form = (body.get("output_config") or {}).get("format")
    if form is None:
        form = (body.get("response_format") or {}).get("json_schema")
    return None if form is None else form["schema"]


def check(schema: Mapping[str, Any], *, claude: bool) -> None:
    """Raises SchemaError for what strict outputs refuse, and what Claude's refuse besides."""
    for part in _parts(schema):
        if claude:
            refused = sorted(_CLAUDE_REFUSES.intersection(part))
            if refused or part.get("minItems", 0) > 1:
                raise SchemaError(f"property '{(refused or ['minItems'])[0]}' is not supported")
        if part.get("type") != "object":
            continue
        if part.get("additionalProperties") is not False:
            raise SchemaError("'additionalProperties' must be explicitly set to false")
        if sorted(part.get("required", ())) != sorted(part["properties"]):
            raise SchemaError("'required' must name every property")


def answer(schema: Mapping[str, Any], body_hash: str) -> str:
    """JSON that keeps to the schema."""
    return json.dumps(instance(schema, random.Random(body_hash)))


def _parts(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    below = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    below += [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    return [schema, *(part for one in below for part in _parts(one))]
