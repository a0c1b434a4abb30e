"""Writes the table of class pairs that fluency is measured by, or with `--check` says whether the
file is what the train posts and golds of the task tldr give.

Fluency's numbers are tuned on this table. With another corpus the rewards of all writing tasks
change, so that runs before and after no longer compare.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from orchestry.core.files import json_lines
from orchestry.task.prose.fluency import COUNTS, pairs_of

BANK = Path(__file__).parents[2] / "tasks" / "tldr" / "problems.jsonl"


def render() -> str:
    """The counts, one pair a line, the pairs in order of the alphabet."""
    rows = [json.loads(line) for _, line in json_lines(BANK.read_bytes())]
    train = [row for row in rows if row["split"] == "train"]
    pairs = pairs_of(
        text for row in train for text in (row["prompt"], *row["data"].get("gold", ()))
    )
    counts = {" ".join(pair): count for pair, count in sorted(pairs.items())}
    return json.dumps(counts, indent=0) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if COUNTS.read_text() == render() else f"{COUNTS.name} is stale: write it again")
    print(f"{COUNTS.write_text(render())} characters in {COUNTS.name}")
