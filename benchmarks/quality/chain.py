"""The whole way from a task to RESULTS.md, as a user goes it: one command line per step.

    python -m benchmarks.quality.chain             # plays what is missing
    python -m benchmarks.quality.chain --write     # the same, and writes docs/results/
    python -m benchmarks.quality.chain --only two_models    # one experiment

Trains, plays the baselines with the run's model and seeds, evaluates on test problems and makes the
report. A step that was cut off goes on where it was: every one is a run that can be resumed.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import page

RESULTS = Path("docs/results")
"""From the repository's root, where the benchmarks are run."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One task on one backend: what is run, on how many seeds, and how it is measured."""

    name: str
    run: tuple[str, ...]
    """Flags of `orchestry run`."""
    seeds: tuple[int, ...]
    baselines: tuple[str, ...]
    """Flags of `orchestry baselines run`, which takes the first seed's run."""
    evaluate: tuple[str, ...]
    """Flags of `orchestry evaluate`, for each seed's run."""
    stage: str = ""
    """Of a recipe the stage whose team is measured; its baselines have that stage's model."""

    def folder(self, root: Path, seed: int) -> Path:
        """Where a seed's run lies."""
        return root / f"{self.name}-seed-{seed}"

    def team(self, root: Path, seed: int) -> str:
        """The run of a seed whose team is measured."""
        folder = self.folder(root, seed)
        return str(folder / "stages" / self.stage if self.stage else folder)

    def training(self, root: Path, seed: int) -> list[tuple[str, ...]]:
        """A seed's run and its evaluation."""
        folder = str(self.folder(root, seed))
        first = ("run", *self.run, "--seed", str(seed), "--run-dir", folder)
        return [first, ("evaluate", self.team(root, seed), *self.evaluate)]

    def commands(self, root: Path) -> Iterator[tuple[str, ...]]:
        """All commands from nothing, in order."""
        for seed in self.seeds:
            yield from self.training(root, seed)
        yield self.comparison(root)
        yield self.report(root, RESULTS / self.name)

    def comparison(self, root: Path) -> tuple[str, ...]:
        """The baselines' command."""
        team = self.team(root, self.seeds[0])
        return ("baselines", "run", "all", "--of", team, *self.baselines)

    def report(self, root: Path, out: Path) -> tuple[str, ...]:
        """The report's command."""
        folders = [str(self.folder(root, seed)) for seed in self.seeds]
        return ("report", *folders, "--out", str(out))


EXPERIMENTS = (
    Experiment(
        "two_models",
        run=(
            "--config",
            "two_models",
            "--set",
            "learn.dtype=bfloat16",
            "--set",
            "learn.threads=1",
        ),
        seeds=(0,),
        baselines=("--samples", "2", "--episodes", "40"),
        evaluate=("--samples", "4", "--episodes", "40"),
        stage="3-magrpo",
    ),
)


def play(experiment: Experiment, root: Path) -> None:
    """Trains and evaluates every seed, then plays the baselines; what is there stays."""
    for seed in experiment.seeds:
        _train(experiment, root, seed)
    call(experiment.comparison(root))


def _train(experiment: Experiment, root: Path, seed: int) -> None:
    run, evaluation = experiment.training(root, seed)
    folder = experiment.folder(root, seed)
    begun = (folder / "journal.jsonl").exists() or (folder / "stages").exists()
    call(("resume", str(folder)) if begun else run)
    call(evaluation)


def call(command: Sequence[str]) -> None:
    """One command line, in a process of its own; raises SystemExit where it fails."""
    print(f"$ orchestry {shlex.join(command)}", flush=True)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "orchestry", *command], check=False)
    print(f"  exit {done.returncode} after {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        raise SystemExit(f"`orchestry {shlex.join(command)}` ended with {done.returncode}")


def write(experiment: Experiment, root: Path) -> None:
    """Makes the report in docs/results/, and says beside it where it comes from."""
    out = RESULTS / experiment.name
    call(experiment.report(root, out))
    (out / "README.md").write_text(origin(experiment, root), encoding="utf-8")


def origin(experiment: Experiment, root: Path) -> str:
    """The commands behind a report, the day, the machine and the revision."""
    lines = [f"orchestry {shlex.join(command)}" for command in experiment.commands(root)]
    return (
        f"# {experiment.name}\n\n[RESULTS.md](RESULTS.md) and its figures were written on "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {page.revision()}, {page.machine()}, by\n\n"
        f"```sh\npython -m benchmarks.quality.chain --only {experiment.name} --write\n```\n\n"
        "which calls (speeds are of that machine, which did other work besides)\n\n```sh\n"
        + "\n".join(lines)
        + "\n```\n"
    )


def main() -> None:
    """Plays the experiments asked for, and writes what they came to where that is wanted."""
    known = [experiment.name for experiment in EXPERIMENTS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=known, action="append", help="may be repeated")
    parser.add_argument("--root", type=Path, default=Path("runs/chain"), help="where runs lie")
    parser.add_argument("--write", action="store_true", help="make the reports in docs/results/")
    asked = parser.parse_args()
    for experiment in EXPERIMENTS:
        if not asked.only or experiment.name in asked.only:
            play(experiment, asked.root)
            if asked.write:
                write(experiment, asked.root)


if __name__ == "__main__":
    main()
