"""tasks/code_review/problems.jsonl, from the functions that define its problems.

    python -m tools.bank [--check]

Writes the file, or with `--check` says whether it is what its source gives.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from orchestry.task.registry import load_task

BANK = Path(__file__).resolve().parent.parent / "tasks" / "code_review" / "problems.jsonl"


def rendered() -> str:
    """The file as its source gives it."""
    home = type(load_task("code_review")).__module__.rpartition(".")[0]
    text: str = import_module(f"{home}.bank").render()
    return text


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if BANK.read_text() == rendered() else f"{BANK.name} is stale: write it again")
    print(f"{BANK.write_text(rendered())} characters in {BANK.name}")
