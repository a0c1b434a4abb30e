"""Steps per second of backend ppo with one process and with several.

    python -m benchmarks.peers.ppo_processes [--processes N] [--steps N] [--rounds N] [--write]

Each row is a run of Bucket Brigade with the defaults of `ppo.*`, but for its number of games. The
same games are divided among the processes. In each round all rows take turns. Steps and seconds are
those between a run's second row of progress.jsonl and its last, so start and compiling don't count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import page
from benchmarks.stats import columns
from orchestry.store.progress import progress

GAMES = (64, 256, 1024, 4096)
SCENARIO = "default"


def played(folder: Path, processes: int, games: int, steps: str) -> float:
    """Steps per second of a run in so many processes."""
    sets = (f"ppo.games={games}", f"options.scenario={SCENARIO}", f"ranks={processes}")
    run = ["run", "--backend", "ppo", "--task", "bucket_brigade", "--steps", steps, "--cpu"]
    run += ["--on", "processes", "--run-dir", str(folder)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "orchestry",
            *run,
            *(word for one in sets for word in ("--set", one)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=page.ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{games} games in {processes} processes failed: {done.stderr}")
    rows = progress(folder)
    if len(rows) < 3:
        raise RuntimeError(f"{steps} steps are too few batches of {games} games: give more --steps")
    first, last = rows[1], rows[-1]
    return (last["steps"] - first["steps"]) / (last["at"] - first["at"])


def table(processes: int, steps: str, rounds: int) -> str:
    """Medians over rounds, and the range."""
    counts = (1, processes)
    found: dict[tuple[int, int], list[float]] = {}
    for _ in range(rounds):
        for games in GAMES:
            for count in counts:
                with tempfile.TemporaryDirectory() as place:
                    rate = played(Path(place) / "run", count, games, steps)
                found.setdefault((games, count), []).append(rate)
                print(f"{games} games, {count} processes: {rate:,.0f}", file=sys.stderr)
    rows = [
        {
            "games": f"{games:,}",
            **{f"steps/s, {n} process{'es' * (n > 1)}": _range(found[games, n]) for n in counts},
            "times": f"{median(found[games, processes]) / median(found[games, 1]):.2f}",
        }
        for games in GAMES
    ]
    return columns(rows, figures=False)


def _range(rates: list[float]) -> str:
    return f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def main() -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2, help="beside one")
    parser.add_argument("--steps", default="1M", help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    body = (
        f"Scenario {SCENARIO}, {args.steps} environment steps per run, a core for each process; "
        f"medians of {args.rounds} rounds, and the range.\n\n"
        f"{table(args.processes, args.steps, args.rounds)}"
    )
    print(body)
    if args.write:
        own = f"--processes {args.processes} --steps {args.steps} --rounds {args.rounds}"
        page.write("ppo_processes", f"python -m benchmarks.peers.ppo_processes {own} --write", body)


if __name__ == "__main__":
    main()
