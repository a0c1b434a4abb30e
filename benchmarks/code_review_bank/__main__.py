"""Writes the bank, or with `--check` says whether the file is what the families give."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.code_review_bank.family import FAMILIES

BANK = Path(__file__).parents[2] / "tasks" / "code_review" / "problems.jsonl"


def render() -> str:
    """All problems, easy ones first, one a line."""
    for grade in range(1, 6):
        import_module(f"benchmarks.code_review_bank.grade{grade}")
    records = [family.record() for family in FAMILIES]
    assert len({record["id"] for record in records}) == len(records), "two families of one name"
    return "".join(json.dumps(record) + "\n" for record in records)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if BANK.read_text() == render() else f"{BANK.name} is stale: write it again")
    print(f"{BANK.write_text(render())} characters in {BANK.name}")
