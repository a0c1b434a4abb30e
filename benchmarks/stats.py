"""Figures of runs by arm and problem, and what they say: means, differences, intervals.

Every arm plays the same problems with the same seeds. Its intervals are percentile bootstraps over
problems, each with all its seeds, or over problems and seeds (`crossed`); those of a share of
trials are Wilson's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, stdev

from orchestry.core.errors import StoreError
from orchestry.core.intervals import student_95, wilson
from orchestry.report import stats
from orchestry.report.stats import Interval
from orchestry.report.text import table
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, load_run

Rows = dict[str, list[float]]
"""By problem, one figure a seed."""
Table = dict[str, Rows]
"""By arm."""


def tabulate(
    runs: dict[str, list[Run]], episodes: int, figure: Callable[[EpisodeRecord], float]
) -> Table:
    """One figure of each of the first episodes, by arm and problem."""
    table: Table = {}
    for arm, seeds in runs.items():
        rows: defaultdict[str, list[float]] = defaultdict(list)
        for run in seeds:
            for episode in run.episodes[:episodes]:
                rows[episode.problem].append(figure(episode))
        table[arm] = dict(rows)
    return table


def difference(first: Rows, second: Rows) -> Rows:
    """Figures of one arm less those of another, problem by problem and seed by seed."""
    return {
        problem: [a - b for a, b in zip(first[problem], second[problem], strict=True)]
        for problem in first
    }


def mean(rows: Rows) -> float:
    """The mean over problems of the mean over seeds."""
    return fmean(map(fmean, rows.values()))


def bounds(rows: Rows) -> tuple[float, float]:
    """The ends of the 95 % interval, as reports have it."""
    found = stats.interval([fmean(row) for row in rows.values()])
    return found.low, found.high


def interval(rows: Rows) -> str:
    """Mean and interval as text."""
    low, high = bounds(rows)
    return f"{mean(rows):.3f} [{low:.3f}, {high:.3f}]"


def crossed(rows: Rows) -> Interval:
    """Mean and 95 % interval over problems and seeds: both are resampled, each with replacement.

    `rows` have a figure per problem and seed, shape (P, S), the same seeds for every problem.
    """
    import numpy as np

    figures_PS = np.array([*rows.values()])
    draws = np.random.RandomState([0])
    weights_DP, weights_DS = (
        draws.multinomial(n, [1 / n] * n, size=stats.DRAWS) / n for n in figures_PS.shape
    )
    means = np.sort(np.einsum("dp,ps,ds->d", weights_DP, figures_PS, weights_DS))
    tail = round((1 - stats.LEVEL) / 2 * stats.DRAWS)
    return Interval(float(figures_PS.mean()), float(means[tail]), float(means[-tail - 1]))


def over_seeds(figures: Sequence[float], form: str = ".1f") -> str:
    """The mean, and half a 95 % interval by Student's t; a single figure has none."""
    if len(figures) < 2:
        return f"{figures[0]:{form}} (one seed)"
    return f"{fmean(figures):{form}} ± {half(figures):{form}}"


def half(figures: Sequence[float]) -> float:
    """Half of the mean's 95 % interval by Student's t; at least two figures."""
    return student_95(len(figures) - 1) * stdev(figures) / len(figures) ** 0.5


def columns(rows: Sequence[Mapping[str, str]], figures: bool = True) -> str:
    """A table of rows that each have their cells by the column's heading."""
    return table([*rows[0]], ([*row.values()] for row in rows), figures) if rows else "No rows."


def share(hits: int, trials: int) -> str:
    """A share of trials and its interval as text."""
    low, high = wilson(hits / trials, trials)
    return f"{hits / trials:.1%} ({low:.1%} to {high:.1%})"


def ranged(values: Sequence[float], form: str) -> str:
    """Median and range as text, each figure in that format."""
    ends = f"{min(values):{form}} to {max(values):{form}}"
    return f"**{median(values):{form}}** ({ends})"


def ended(run: Run) -> Run:
    """The run, if it came to its end; else the benchmark stops, and says how to go on."""
    if not done(run):
        raise SystemExit(f"{run.folder} stopped before its end: the same command goes on")
    return run


def played(place: Path) -> Run | None:
    """The run in that folder, if it came to its end there, or was kept."""
    whole = (place / "summary.json").exists()
    return run if whole and done(run := load_run(place)) else None


def done(run: Run) -> bool:
    """Whether a run came to its end; one that has no summary yet did not."""
    try:
        return run.summary.stopped == "done"
    except StoreError:
        return False
