"""The source of problems.jsonl beside it: `python -m tools.bank` writes the file."""

from __future__ import annotations

import json
from importlib import import_module

from .family import FAMILIES


def render() -> str:
    """All problems, easy ones first, one per line."""
    for grade in range(1, 6):
        import_module(f"{__name__}.grade{grade}")
    records = [family.record() for family in FAMILIES]
    assert len({record["id"] for record in records}) == len(records), "two families of one name"
    return "".join(json.dumps(record) + "\n" for record in records)
