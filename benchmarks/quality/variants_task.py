"""Variants of the local learner beside the plain one, on a real task.

A team of two untrained 135M agents learns code_collaboration by MAGRPO, as benchmarks.quality.
local_learning has it but on problems of all grades, once per variant and seed. It visits each of a
few train problems several times, since some variants choose by what a problem earned before. Every
second update it plays the dev problems. What is compared: the dev reward over training and at its
end, and the updates until it reaches a threshold. Samples to the threshold are these updates times
the samples that an update of the run draws on average.

    python -m benchmarks.quality.variants_task [--seeds N] [--updates N] [--folder DIR]
        [--only VARIANT SEED] [--write]

All lies in --folder, so that a cut-off benchmark goes on where it was; runs that this repository
keeps (benchmarks/kept) are taken from there. `--only critic 0` plays one variant and prints
nothing, so that they can be played side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import kept, page
from benchmarks.problems import spread, written
from benchmarks.quality.local_learning import LEARN, Notes
from benchmarks.stats import columns, ended, played
from orchestry.core.config import validate
from orchestry.engine.run import resume, train
from orchestry.store.journal import Evaluated
from orchestry.store.run import Run
from orchestry.task.registry import load_task

PLAIN = "plain"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {},
    "leave_one_out": {"learn": {"baseline": "leave_one_out"}},
    "critic": {"learn": {"baseline": "critic"}},
    "replay": {"learn": {"credit": "replay"}},
    "auto": {"learn": {"group_size": "auto"}},
    "grade": {"curriculum": "grade"},
    "success": {"curriculum": "success"},
}
"""Config keys that differ from the plain learner's; by name."""
EVERY, EVALUATE_EVERY, DEV, PROBLEMS = 5, 2, 18, 10
TASK = "code_collaboration"
GOAL = 0.35
"""Dev reward: between that of the untrained team (0.26) and that of a plain run's end (0.40)."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The runs: where they lie, and how long they learn."""

    folder: Path
    model: str = "embedded"
    updates: int = 6

    def play(self, name: str, seed: int) -> Run:
        """A variant with a seed: from its start, or the rest of it, or what it came to."""
        config = self.config(name, seed)
        plain = config | {"options": self.bank().name}
        place = kept.place(self.folder, f"{name}-{seed}", plain)
        notes = Notes(place.name)
        if not (place / "journal.jsonl").exists():
            return ended(train(validate(config), place, notes))
        return played(place) or ended(resume(place, observer=notes))

    def bank(self) -> Path:
        """A file with the few train problems, evenly spread, and all others."""
        task = load_task(TASK)
        few = spread(task.problems("train"), PROBLEMS)
        problems = [*few, *task.problems("dev"), *task.problems("test")]
        return written(self.folder / f"{TASK}-{PROBLEMS}.jsonl", problems)

    def config(self, name: str, seed: int) -> dict[str, Any]:
        """A variant's config."""
        change = VARIANTS[name]
        measured = {"evaluate_every": EVALUATE_EVERY, "evaluate_problems": DEV}
        return {
            "backend": "local",
            "task": TASK,
            "options": {"path": str(self.bank())},
            "episodes": self.updates * EVERY,
            "seed": seed,
            "provider": {"model": self.model},
            "sampling": {"max_tokens": 64, "temperature": 0.8},
            **change,
            "learn": {
                **LEARN,
                "every": EVERY,
                "top_p": 0.95,
                **measured,
                **change.get("learn", {}),
            },
        }


def curve(run: Run) -> dict[int, float]:
    """Dev rewards by update."""
    return {event.update: event.reward for event in run.events if isinstance(event, Evaluated)}


def updates_to(goal: float, rewards: Mapping[int, float]) -> float | None:
    """Where the dev reward first reaches the goal, straight lines between; None: nowhere."""
    points = sorted(rewards.items())
    if points[0][1] >= goal:
        return float(points[0][0])
    for (before, low), (after, high) in pairwise(points):
        if high >= goal:
            return before + (after - before) * (goal - low) / (high - low)
    return None


def drawn(run: Run) -> int:
    """Answers drawn to learn from, replays included."""
    return sum(row.calls for row in run.summary.usage if row.purpose != "dev")


def report(runs: Mapping[str, Sequence[Run]]) -> str:
    """The section's body."""
    plain = runs[PLAIN]
    first = fmean(curve(run)[0] for run in plain)
    rows = [_row(name, found, plain) for name, found in runs.items()]
    learn, last = plain[0].config["learn"], max(curve(plain[0]))
    return (
        f"{len(plain)} seeds, {last} updates of {learn['every']} problems, learning rate "
        f"{learn['learning_rate']:g}, {PROBLEMS} train problems; {learn['evaluate_problems']} dev "
        f"problems, whose mean reward at the start is {first:.3f}. The threshold is {GOAL:g}; `-` "
        "where a seed did not reach it. Differences are to the plain learner of the same seed."
        f"\n\n{columns(rows)}"
    )


def _row(name: str, found: Sequence[Run], plain: Sequence[Run]) -> dict[str, str]:
    ends = [curve(run)[max(curve(run))] for run in found]
    others = [curve(run)[max(curve(run))] for run in plain]
    means = [fmean(reward for update, reward in curve(run).items() if update) for run in found]
    reached = [updates_to(GOAL, curve(run)) for run in found]
    samples = [drawn(run) / max(curve(run)) for run in found]
    counts = [None if u is None else u * n for u, n in zip(reached, samples, strict=True)]
    return {
        "learner": name,
        "dev reward at the end": f"{fmean(ends):.3f}",
        "less plain's, by seed": ", ".join(
            f"{a - b:+.3f}" for a, b in zip(ends, others, strict=True)
        ),
        "over training": f"{fmean(means):.3f}",
        "updates to the threshold": _listed(reached, ".1f"),
        "samples to it": _listed(counts, ",.0f"),
        "samples drawn": f"{fmean(map(drawn, found)):,.0f}",
    }


def _listed(numbers: Sequence[float | None], form: str) -> str:
    return ", ".join("-" if one is None else format(one, form) for one in numbers)


def main() -> None:
    """Plays what is missing, then prints or writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-variants"))
    parser.add_argument("--only", nargs=2, metavar=("VARIANT", "SEED"), help="play that one")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    tuning = Tuning(args.folder.absolute(), updates=args.updates)
    kept.restore("variants_task", tuning.folder)
    if args.only:
        name, seed = args.only
        if name not in VARIANTS:
            parser.error(f"--only {name}: known are {', '.join(VARIANTS)}")
        tuning.play(name, int(seed))
        return
    seeds = range(args.seeds)
    body = report({name: [tuning.play(name, seed) for seed in seeds] for name in VARIANTS})
    print(body)
    if args.write:
        command = "python -m benchmarks.quality.variants_task"
        sizes = f"--seeds {args.seeds} --updates {args.updates}"
        body = f"{body}\n\n{kept.revisions(tuning.folder, '*')}"
        page.write("variants_task", f"{command} {sizes} --write", body)


if __name__ == "__main__":
    main()
