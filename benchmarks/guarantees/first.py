"""What a newcomer waits for: the README's first run with a busy core beside it, and quick_test.

The run is played with several seeds and without the answer cache, while another process keeps one
core busy. Asked of each: its seconds, as its own summary has them, and whether the answer that
`--show-best` shows passes all of its tests.

    python -m benchmarks.guarantees.first [--seeds 10] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import load, page
from orchestry.store.run import load_run

COMMAND = "python -m benchmarks.guarantees.first --write"
GOAL_S, GOAL_SHARE, QUICK_S = 120.0, 0.8, 60.0


def first_run() -> list[str]:
    """The arguments of `orchestry` in the README's first command."""
    text = (page.ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("<!-- run-command -->")[2]
    found = re.search(r"&& orchestry (.*)", block)
    if found is None:
        raise RuntimeError("README.md has no `orchestry ...` after <!-- run-command -->")
    return shlex.split(found[1])


@contextmanager
def busy_core() -> Iterator[int]:
    """A process that does nothing but use a core; its pid."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def played(seed: int, folder: Path) -> dict[str, Any]:
    """One run of the README's command with a seed of its own."""
    settings = ["--seed", str(seed), "--set", "cache.enabled=false", "--run-dir", str(folder)]
    command = [sys.executable, "-m", "orchestry", *first_run(), *settings]
    subprocess.run(command, check=True, capture_output=True)
    run = load_run(folder)
    best = run.best
    if best is None:
        raise RuntimeError(f"seed {seed}: no episode finished")
    return {
        "seed": seed,
        "seconds": round(run.summary.seconds, 1),
        "problem": best.problem,
        "passes": "solved" in best.best_node.score.tags,
    }


def quick_test(folder: Path) -> float:
    """Seconds of `orchestry run --config quick_test`, from the start of its process to its end."""
    command = ["run", "--config", "quick_test", "--run-dir", str(folder)]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "orchestry", *command], check=True, capture_output=True)
    return time.perf_counter() - began


def measure(seeds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        before = load.read()
        quick = quick_test(Path(name) / "quick")
        quick_others = load.others(before, load.read())
        with busy_core() as pid:
            before = load.read(pid)
            runs = [played(seed, Path(name) / str(seed)) for seed in range(seeds)]
            others = load.others(before, load.read(pid))
    return {
        "runs": runs,
        "others": round(others, 2),
        "quick_s": round(quick, 1),
        "quick_others": round(quick_others, 2),
    }


def met(found: dict[str, Any]) -> tuple[bool, bool, bool]:
    """Seconds of the first run, share of answers that pass, seconds of quick_test."""
    runs = found["runs"]
    share = sum(run["passes"] for run in runs) / len(runs)
    slowest = max(run["seconds"] for run in runs)
    return slowest < GOAL_S, share >= GOAL_SHARE, found["quick_s"] < QUICK_S


def section(found: dict[str, Any]) -> str:
    runs, words = found["runs"], ["met" if goal else "missed" for goal in met(found)]
    seconds = [run["seconds"] for run in runs]
    passing = sum(run["passes"] for run in runs)
    return (
        f"- `orchestry {shlex.join(first_run())}` with one busy core beside it, {len(runs)} seeds: "
        f"median **{median(seconds):.0f} s**, longest {max(seconds):.0f} s; goal {GOAL_S:.0f} s: "
        f"{words[0]}. The answer shown passes all its tests in **{passing} of {len(runs)}**; goal "
        f"{GOAL_SHARE:.0%}: {words[1]}. Other processes took {found['others']:.0%} of the machine."
        "\n- `orchestry run --config quick_test`: "
        f"**{found['quick_s']:.0f} s**, the whole process; "
        f"goal {QUICK_S:.0f} s: {words[2]}. Other processes took {found['quick_others']:.0%}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    found = measure(args.seeds)
    print(json.dumps(found) if args.json else section(found))
    if args.write:
        page.write("first", COMMAND, section(found))
    if not all(met(found)):
        sys.exit(1)


if __name__ == "__main__":
    main()
