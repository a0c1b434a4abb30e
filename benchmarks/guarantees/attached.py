"""How long it takes from a program with agents to a learned team, by docs/your-agents.md.

The page's program and problems are put into an empty folder, and its commands are typed there one
after the other: attach, check, a first run, its evaluation, and the run that learns weights, with
its own. Without keys of vendors the embedded model plays. Packages and model are there already, and
the run that learns prompts by an API is left out.

    python -m benchmarks.guarantees.attached [--write]
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from benchmarks import page
from benchmarks.stats import columns
from orchestry.engine.evaluate import evaluate
from orchestry.store.run import load_run

COMMAND = "python -m benchmarks.guarantees.attached --write"
GOAL_MIN = 10


def example(name: str) -> str:
    """A marked block of the page."""
    text = (page.ROOT / "docs" / "your-agents.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)```", text, re.DOTALL)
    if found is None:
        raise RuntimeError(f"docs/your-agents.md has no example '{name}'")
    return found[1]


def lines() -> list[str]:
    """The commands in order; of those that learn, the ones below the installation of `local`."""
    weights = example("learn").partition("local]")[2]
    found = [*example("commands").splitlines(), *weights.splitlines()]
    return [line for line in found if line.startswith("orchestry ")]


def typed(folder: Path) -> Iterator[dict[str, str]]:
    """Each command with its seconds."""
    for name in ("app.py", "problems.jsonl"):
        (folder / name).write_text(example(name), encoding="utf-8")
    keys = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
    env = {name: value for name, value in os.environ.items() if name not in keys}
    for line in lines():
        words = [sys.executable if word == "python" else word for word in shlex.split(line)]
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", *words], cwd=folder, env=env, check=True, stdout=sys.stderr
        )
        yield {"command": f"`{line}`", "seconds": f"{time.monotonic() - began:.0f}"}


def main() -> None:
    """Types the page's commands, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as name:
        load, began = os.getloadavg()[0], time.monotonic()
        rows = [*typed(Path(name))]
        minutes = (time.monotonic() - began) / 60
        run = load_run(Path(name) / "runs" / "weights")
        ends = [evaluate(run, "test", update=which).episodes for which in (0, None)]
    before, after = (fmean(one.mean_leaf_reward for one in end) for end in ends)
    body = (
        "The commands of [your-agents](your-agents.md), typed one after the other in an empty "
        f"folder. From the program to the learned team: **{minutes:.1f} minutes** (goal: at most "
        f"{GOAL_MIN}; {'reached' if minutes <= GOAL_MIN else 'missed'}), with the embedded model "
        "(135M); packages and model were there already, and prompts were not learned, which needs "
        f"an API. The machine's load was {load:.1f} when it began. Mean reward over {len(ends[0])} "
        f"problem of test, one seed: {before:.3f} before, {after:.3f} after; the page's "
        "program pays for few words alone.\n\n"
        f"{columns(rows)}"
    )
    print(body)
    if write:
        page.write("attached", COMMAND, body)


if __name__ == "__main__":
    main()
