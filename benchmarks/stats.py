"""Figures of runs by arm and problem, and what they say: means, differences, intervals.

Every arm plays the same problems with the same seeds. An interval is a percentile bootstrap over
problems, each with all its seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean

from orchestry.report import stats
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run

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
