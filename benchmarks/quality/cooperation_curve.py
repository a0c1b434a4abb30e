"""How runs of MAGRPO went so far: dev problems between the updates, and the updates themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from textwrap import wrap

from benchmarks import page
from benchmarks.stats import columns
from orchestry.store.journal import Evaluated, Learned
from orchestry.store.run import Run

WIDTH = 86
"""Characters of a line in a config's comment."""
PAUSE_S = 1800.0
"""A longer gap between two entries of a journal is one in which nothing was played."""
SHOWN = ("cooperates", "solved", "no_helper")
_OF_UPDATES = {
    "reward": "reward in updates",
    "flat": "flat groups",
    "entropy": "entropy per token",
    "length": "tokens per answer",
}
_SO_FAR = re.compile(r"(\n## So far: ).*?(?=\n\n)", re.DOTALL)


def curve(runs: Sequence[Run]) -> str:
    """A table per run: a row for each evaluation on dev, with the updates before it."""
    learn = runs[0].config["learn"]
    how = (
        f"MAGRPO from {'a warm start' if learn.get('from') else 'the untrained base'}, before the "
        f"test split is played. On dev: {learn['evaluate_problems']} problems of families without "
        f"gold, {learn['group_size']} trajectories each; means, without intervals. Update 0 is "
        "what it began from. Flat groups, whose trajectories all earn the same, teach nothing. At "
        "most "
        f"{runs[0].config['sampling']['max_tokens']} tokens per answer, learning rate "
        f"{learn['learning_rate']:g}, one thread; hours are the wall clock's, pauses of less than "
        f"{PAUSE_S / 60:.0f} minutes and other work beside it included."
    )
    return "\n\n".join([how, *(f"{_told(run)}\n\n{columns([*_rows(run)])}" for run in runs)])


def in_config(run: Run, file: Path) -> None:
    """Puts what the run came to so far into the comment of a shipped config."""
    first, *_, last = _evaluated(run)
    found = [
        f"one seed of benchmarks.quality.cooperation, {run.config['learn']['evaluate_problems']} "
        "dev problems of families without gold. From the warm start to update "
        f"{last.update}, cooperation went from {first.tags.get('cooperates', 0.0):.0%} to "
        f"{last.tags.get('cooperates', 0.0):.0%} of the trajectories, solved from "
        f"{first.tags.get('solved', 0.0):.0%} to {last.tags.get('solved', 0.0):.0%}, and the mean "
        f"reward from {first.reward:.3f} to {last.reward:.3f}.",
        f"That took {_hours(run) / max(1, len(_learned(run))) * 60:.1f} minutes on the wall clock "
        f"per update of {run.config['learn']['every']} episodes (one thread, learn.dtype="
        f"{run.config['learn']['dtype']}; {page.machine()}; "
        f"{datetime.now(UTC):%Y-%m-%d}).",
    ]
    lines = [line for text in found for line in wrap(text, WIDTH)]
    text = file.read_text(encoding="utf-8")
    assert _SO_FAR.search(text), f"{file} has no line that begins with '## So far: '"
    file.write_text(_SO_FAR.sub(lambda m: m[1] + "\n## ".join(lines), text), encoding="utf-8")


def _told(run: Run) -> str:
    return (
        f"Seed {run.config['seed']}: {len(_learned(run))} updates so far, of "
        f"{run.config['episodes'] // run.config['learn']['every']}, in {_hours(run):.1f} hours."
    )


def _evaluated(run: Run) -> list[Evaluated]:
    return [event for event in run.events if isinstance(event, Evaluated)]


def _learned(run: Run) -> list[Learned]:
    return [event for event in run.events if isinstance(event, Learned)]


def _hours(run: Run) -> float:
    """Hours in which something was played."""
    times = [event.at for event in run.events if isinstance(event, Evaluated | Learned)]
    return sum(b - a for a, b in pairwise(sorted(times)) if b - a < PAUSE_S) / 3600


def _rows(run: Run) -> Iterator[dict[str, str]]:
    """What dev showed, and of the updates since the evaluation before the mean of their figures."""
    learned, before = _learned(run), 0
    for event in _evaluated(run):
        since = [one for one in learned if before < one.update <= event.update]
        row = {"update": str(event.update), "reward on dev": f"{event.reward:.3f}"}
        row |= {name: f"{event.tags.get(name, 0.0):.0%}" for name in SHOWN}
        row |= {
            heading: _mean([one.state.get(key) for one in since])
            for key, heading in _OF_UPDATES.items()
        }
        before = event.update
        yield row


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3f}" if known else ""
