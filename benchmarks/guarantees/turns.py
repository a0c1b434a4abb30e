"""The embedded model at many turns: what it costs to read an agent's rules anew at each of them.

    python -m benchmarks.guarantees.turns [--write]

Three games of Bucket Brigade at once, four agents each, eight nights long, whose prompts have three
examples: with `PROMPTS_MIB` of models/embedded.py, which keeps what earlier prompts came to, and
with 0, which keeps only what the slots hold. Each run is a process of its own on one core.
"""

from __future__ import annotations

import argparse
import os
import resource
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
SCENARIO, NIGHTS, GAMES = "default", 8, 3


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


def row(folder: Path, kept_mib: int) -> dict[str, str]:
    """Of one run: its tokens, and its process's CPU time and memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-m", "benchmarks.guarantees.turns", "--play", str(folder)]
    subprocess.run([*command, str(kept_mib)], check=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    answered = [e.completion for e in load_run(folder).events if isinstance(e, Answered)]
    asked, kept = (sum(getattr(one, name) for one in answered) for name in TOKENS)
    return {
        "earlier prompts kept, MiB": str(kept_mib),
        "answers": f"{len(answered):,}",
        "tokens of prompts": f"{asked:,}",
        "of these read": f"{asked - kept:,}",
        "CPU s": f"{seconds:.0f}",
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
    os.sched_setaffinity(0, {0})
    with tempfile.TemporaryDirectory(prefix="turns-") as name:
        rows = [row(Path(name) / str(mib), mib) for mib in (0, embedded.PROMPTS_MIB)]
    text = columns(rows, figures=False)
    print(text)
    if args.write:
        page.write("turns", "python -m benchmarks.guarantees.turns --write", text)


if __name__ == "__main__":
    main()
