"""Means over problems with intervals, and pass@k. Pure, seeded.

Problems are the unit of resampling, because samples of one problem are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import fmean

DRAWS = 2_000
"""Resamplings of a bootstrap interval."""
LEVEL = 0.95
FEWEST_PROBLEMS = 6
"""Minimum number of problems for a paired difference: with five, all differ in one direction by
chance once in 16, which is more than 1 - LEVEL."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the ends of its 95 % interval, in the figure's own unit."""

    mean: float
    low: float
    high: float

    def plain(self) -> dict[str, float]:
        """As JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(figures_P: Sequence[float]) -> Interval:
    """The mean of one figure per problem, shape (P,), with a percentile bootstrap over problems.

    Seeded, so that equal figures give equal ends. One problem, or equal figures, give zero width.
    Raises ValueError for no figures.
    """
    import numpy as np

    if not figures_P:
        raise ValueError("no figures: an interval needs one problem at least")
    mean = fmean(figures_P)
    if len(set(figures_P)) == 1:
        return Interval(mean, mean, mean)
    figures, count = np.array(figures_P), len(figures_P)
    # RandomState's draws are the same in every version of numpy; a Generator's may change
    drawn = (np.random.RandomState([0]).random_sample((DRAWS, count)) * count).astype(int)
    means = np.sort(figures[drawn].mean(axis=1))
    tail = round((1 - LEVEL) / 2 * DRAWS)
    return Interval(mean, float(means[tail]), float(means[-tail - 1]))


def crossed(figures_SP: Sequence[Sequence[float]]) -> Interval:
    """The mean of one figure per seed and problem, shape (S, P), with a percentile bootstrap over
    both: seeds are drawn first, then problems, the same ones for all seeds. Seeded as `interval`.
    """
    import numpy as np

    figures = np.array(figures_SP)
    seeds, problems = figures.shape
    drawn = np.random.RandomState([0]).random_sample((DRAWS, seeds + problems))
    rows = (drawn[:, :seeds] * seeds).astype(int)
    columns = (drawn[:, seeds:] * problems).astype(int)
    means = np.sort(
        [figures[np.ix_(own, its)].mean() for own, its in zip(rows, columns, strict=True)]
    )
    tail = round((1 - LEVEL) / 2 * DRAWS)
    return Interval(float(figures.mean()), float(means[tail]), float(means[-tail - 1]))


def difference(first: Mapping[str, float], second: Mapping[str, float]) -> Interval | None:
    """First minus second, paired over common problems; None if there are none."""
    both = sorted(first.keys() & second.keys())
    return interval([first[name] - second[name] for name in both]) if both else None


def apart(first: Sequence[float], last: Sequence[float]) -> Interval:
    """The mean of `last` minus that of `first`, whose figures are of different episodes: each side
    is resampled by itself. Seeded as `interval`. Raises ValueError for a side without figures."""
    import numpy as np

    if not first or not last:
        raise ValueError("no figures: a difference needs one on each side")
    draws, means = np.random.RandomState([0]), []
    for figures in (first, last):
        at = (draws.random_sample((DRAWS, len(figures))) * len(figures)).astype(int)
        means.append(np.array(figures)[at].mean(axis=1))
    gaps = np.sort(means[1] - means[0])
    tail = round((1 - LEVEL) / 2 * DRAWS)
    return Interval(fmean(last) - fmean(first), float(gaps[tail]), float(gaps[-tail - 1]))


def pass_at(k: int, n: int, solved: int) -> float | None:
    """The probability that one of k samples solves a problem that `solved` of n samples solved.

    The unbiased estimator 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation
    1); None where k > n, since fewer samples can't tell.
    """
    if k > n:
        return None
    return 1.0 - comb(n - solved, k) / comb(n, k)


def expected_best(k: int, rewards_n: Sequence[float]) -> float | None:
    """The mean reward of the best of k samples drawn from n without replacement, shape (n,).

    Unbiased, as pass@k is for rewards of 0 and 1; None where k > n.
    """
    n = len(rewards_n)
    if k > n:
        return None
    ordered = sorted(rewards_n)  # the i-th smallest is the best of C(i, k - 1) sets of k
    return sum(comb(i, k - 1) * reward for i, reward in enumerate(ordered)) / comb(n, k)
