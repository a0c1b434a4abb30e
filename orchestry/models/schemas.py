"""What is sent of a request's JSON schema, and what it may cost.

Vendors enforce a subset of JSON schema and answer 400 to the rest. A keyword that one refuses is
said in its schema's description instead: the model reads it, and the reader checks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_ROOM = 512
"""Tokens that a vendor may add to the prompt to explain the form; nobody publishes how many."""


def without(schema: Mapping[str, Any], refused: Callable[[str, Any], bool]) -> dict[str, Any]:
    """The schema with all keywords that are `refused` (keyword, value) moved to descriptions."""
    kept: dict[str, Any] = {}
    said = []
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):  # their keys are names, not keywords
            kept[keyword] = {name: without(part, refused) for name, part in value.items()}
        elif keyword == "items":
            kept[keyword] = without(value, refused)
        elif keyword == "anyOf":
            kept[keyword] = [without(part, refused) for part in value]
        elif refused(keyword, value):
            said.append(f"{keyword}: {value}")
        else:
            kept[keyword] = value
    if said:
        before = f"{kept['description']} " if kept.get("description") else ""
        kept["description"] = f"{before}({', '.join(said)})"
    return kept


def schema_bound(schema: Mapping[str, Any] | None) -> int:
    """No more input tokens than this for a schema as it is sent; see `bytes_bound`."""
    return 0 if schema is None else len(json.dumps(schema).encode("utf-8")) + _ROOM
