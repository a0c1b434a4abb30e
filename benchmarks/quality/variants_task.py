"""Variants of the local learner beside the plain one, on a real task.

A team of two 135M agents begins with adapters that were fine-tuned on a few gold answers (those of
benchmarks.quality.cooperation, seed 0) and goes on by MAGRPO on generated train problems of
code_collaboration, once per variant and seed. Every few updates it plays the same dev problems.
What is compared: the dev reward over training and at its end, and the updates until it has come
half of the way from its start to 1, with the samples that so many updates drew in the mean.

    python -m benchmarks.quality.variants_task [--seeds N] [--updates N] [--folder DIR]
        [--only VARIANT SEED] [--write]

All lies in --folder, so that a cut-off benchmark goes on where it was; runs that this repository
keeps (benchmarks/kept) are taken from there. `--only critic 0` plays one variant and prints
nothing, so that they can be played side by side; `--only warm 0` makes the start, and comes first.
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
from benchmarks.quality.cooperation import GENERATED, LEARN, Bench, Notes
from benchmarks.stats import columns, ended, played
from orchestry.core.config import validate
from orchestry.engine.run import resume, train
from orchestry.store.journal import Evaluated
from orchestry.store.run import Run

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
EVALUATE_EVERY, DEV = 3, 24
WARM = "warm"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The runs: where they lie, and how long they learn."""

    start: Bench
    updates: int = 9

    def play(self, name: str, seed: int) -> Run:
        """A variant with a seed: from its start, or the rest of it, or what it came to."""
        own = (VARIANTS[name], self.updates, EVALUATE_EVERY, DEV)
        place = kept.place(self.start.folder, f"{name}-{seed}", *self.start.settings(WARM), *own)
        notes = Notes(place.name)
        if not (place / "journal.jsonl").exists():
            return ended(train(validate(self.config(name, seed)), place, notes))
        return played(place) or ended(resume(place, observer=notes))

    def config(self, name: str, seed: int) -> dict[str, Any]:
        """A variant's config."""
        learn = {**LEARN, "evaluate_every": EVALUATE_EVERY, "evaluate_problems": DEV}
        change = VARIANTS[name]
        learn |= {"from": str(self.start.warm(0)), **change.get("learn", {})}
        plain = self.start.config(seed, self.start.bank(GENERATED))
        plain["episodes"] = self.updates * LEARN["every"]
        return {**plain, **change, "learn": learn}


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
    goal = (1.0 + first) / 2
    rows = [_row(name, found, plain, goal) for name, found in runs.items()]
    learn, last = plain[0].config["learn"], max(curve(plain[0]))
    return (
        f"{len(plain)} seeds, {last} updates of {learn['every']} problems, learning rate "
        f"{learn['learning_rate']:g}; {learn['evaluate_problems']} dev problems, whose mean reward "
        f"at the start is {first:.3f}. The threshold is {goal:.3f}; `-` where a seed did not reach "
        f"it. Differences are to the plain learner of the same seed.\n\n{columns(rows)}"
    )


def _row(name: str, found: Sequence[Run], plain: Sequence[Run], goal: float) -> dict[str, str]:
    ends = [curve(run)[max(curve(run))] for run in found]
    others = [curve(run)[max(curve(run))] for run in plain]
    means = [fmean(reward for update, reward in curve(run).items() if update) for run in found]
    reached = [updates_to(goal, curve(run)) for run in found]
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
    parser.add_argument("--updates", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-variants"))
    parser.add_argument("--only", nargs=2, metavar=("VARIANT", "SEED"), help="play that one")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    tuning = Tuning(Bench(args.folder.absolute()), args.updates)
    kept.restore("variants_task", tuning.start.folder)
    if args.only:
        name, seed = args.only
        if name not in (WARM, *VARIANTS):
            parser.error(f"--only {name}: known are {', '.join((WARM, *VARIANTS))}")
        if name == WARM:
            tuning.start.warm(0)
        else:
            tuning.play(name, int(seed))
        return
    seeds = range(args.seeds)
    body = report({name: [tuning.play(name, seed) for seed in seeds] for name in VARIANTS})
    print(body)
    if args.write:
        command = "python -m benchmarks.quality.variants_task"
        sizes = f"--seeds {args.seeds} --updates {args.updates}"
        body = f"{body}\n\n{kept.revisions(tuning.start.folder, '*')}"
        page.write("variants_task", f"{command} {sizes} --write", body)


if __name__ == "__main__":
    main()
