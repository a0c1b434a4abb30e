"""The embedded model at many turns: what it costs to read an agent's rules anew at each of them.

    python -m benchmarks.guarantees.turns [--write]

Games of Bucket Brigade at once, four agents each, whose prompts have three examples: with
`PROMPTS_MIB` of models/embedded.py, which keeps what earlier prompts came to, and with 0, which
keeps only what the slots hold. Both runs go at the same time, each on a core of its own; then once
more with their cores changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page
from benchmarks.quality.bucket_models import examples
from benchmarks.stats import columns
from orchestry.core.config import validate
from orchestry.engine.run import train
from orchestry.engine.session import Silent
from orchestry.models import embedded
from orchestry.store.journal import Answered
from orchestry.store.run import load_run

TOKENS = ("input_tokens", "cached_tokens")
SCENARIO, NIGHTS, GAMES = "default", 3, 8


def play(folder: Path, kept_mib: int) -> None:
    """One run, in this process."""
    embedded.PROMPTS_MIB = kept_mib
    options = {"scenario": SCENARIO, "rules": {"min_nights": NIGHTS}, "max_nights": NIGHTS + 1}
    config = {
        "task": "bucket_brigade",
        "options": options,
        "agents": examples(SCENARIO),
        "provider": {"name": "embedded"},
        "episodes": 1,
        "search": {"strategy": "chains", "k_samples": GAMES},
        "sampling": {"max_tokens": 16},
        "judge": {"enabled": False},
        "behaviors": {"enabled": False},
        "cache": {"enabled": False},
    }
    train(validate(config), folder, Silent())


def both(folder: Path, cores: Sequence[int]) -> dict[int, tuple[float, float]]:
    """By size of the memory: CPU seconds and peak MiB of a run; each has its core."""
    running = {}
    for kept, core in zip((0, embedded.PROMPTS_MIB), cores, strict=True):
        own = [sys.executable, "-m", "benchmarks.guarantees.turns", "--play"]
        command = ["taskset", "-c", str(core), *own, str(folder / str(kept)), str(kept)]
        running[kept] = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    used = {}
    for kept, process in running.items():
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"the run with {kept} MiB failed: status {status}")
        used[kept] = (usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
    return used


def row(folder: Path, kept: int, used: Sequence[tuple[float, float]]) -> dict[str, str]:
    """Of one way: its tokens, and each run's CPU time and memory."""
    events = load_run(folder / str(kept)).events
    answered = [e.completion for e in events if isinstance(e, Answered)]
    asked, known = (sum(getattr(one, name) for one in answered) for name in TOKENS)
    return {
        "earlier prompts kept, MiB": str(kept),
        "answers": f"{len(answered):,}",
        "tokens of prompts": f"{asked:,}",
        "of these read": f"{asked - known:,}",
        "CPU s": ", ".join(f"{seconds:.0f}" for seconds, _ in used),
        "memory at most, MiB": ", ".join(f"{mib:,.0f}" for _, mib in used),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--play", nargs=2, metavar=("DIR", "MIB"), help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args(argv)
    if args.play:
        play(Path(args.play[0]), int(args.play[1]))
        return
    with tempfile.TemporaryDirectory(prefix="turns-") as name:
        folders = [Path(name) / cores for cores in ("0-1", "1-0")]
        used = [both(folder, (*map(int, folder.name.split("-")),)) for folder in folders]
        rows = [row(folders[0], kept, [one[kept] for one in used]) for kept in used[0]]
    text = f"{GAMES} games of {NIGHTS} nights.\n\n{columns(rows, figures=False)}"
    print(text)
    if args.write:
        page.write("turns", "python -m benchmarks.guarantees.turns --write", text)


if __name__ == "__main__":
    main()
