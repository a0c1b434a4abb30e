"""Whether a learning curve still moves at its end: a trend test over its last third.

Mann and Kendall's test asks whether later points tend to be higher than earlier ones; Sen's slope,
the median over all pairs of points, says by how much, with its 95 % interval (Sen 1968, doi
10.2307/2285891). Both hold for any distribution of points that do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign, erfc, sqrt
from typing import Literal

from orchestry.report import neural
from orchestry.report.curves import NORMAL, axis, curve, episode_reward
from orchestry.report.runs import Salvaged
from orchestry.report.stats import LEVEL, Interval
from orchestry.report.text import counted, short

Verdict = Literal["still rising", "still falling", "flat", "unclear", "too short to say"]
FEWEST = 10
"""Points in the last third: from there on the test's normal approximation holds."""
MARGIN = 0.05
"""A curve is flat if its change over the last third is less than this: of rewards, which are in
[0, 1]; of returns, as a share of the whole curve's range."""
_MOST = 20
"""Points that are compared; of more, neighbours are averaged. Rewards of single episodes are often
equal (0 or 1), so that their median slope says nothing, and they depend on their neighbours."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The last third of a curve."""

    verdict: Verdict
    unit: str
    """What the x axis counts, in the singular."""
    start: int
    end: int
    """The first and the last x of the third."""
    points: int
    change: Interval | None = None
    """By how much the curve moved over the third; None: too short to say."""
    p: float = 1.0
    """That such a trend comes about by chance."""
    margin: float = MARGIN

    def __str__(self) -> str:
        if self.change is None:
            few = counted(self.points, "point")
            return f"{self.verdict}: its last third has {few}, and the test needs {FEWEST}"
        middle, *ends = (
            f"{value:+.3f}" if abs(value) < 10 else f"{value:+,.1f}" for value in self._figures
        )
        within = f"within {short(self.margin)} either way"
        meant = {
            "flat": f"the whole interval is {within}",
            "unclear": f"no trend is shown, but the interval is not {within}",
        }.get(self.verdict, f"p = {self.p:.2g}" if self.p >= 1e-4 else "p < 0.0001")
        return (
            f"{self.verdict}: {middle} [{', '.join(ends)}] from {self.unit} {self.start:,} to "
            f"{self.end:,} ({meant})"
        )

    @property
    def _figures(self) -> tuple[float, float, float]:
        assert self.change is not None, "only said of a change"
        return self.change.mean, self.change.low, self.change.high


def converged(run: Salvaged) -> Trend | None:
    """The trend at the end of a run's learning curve: of its reward, or of backend ppo's returns.
    None without a point."""
    if run.neural:
        found = neural.line(run.batches, neural.RETURN, 1)
        values = [*found.values()]
        margin = MARGIN * (max(values) - min(values)) if values else MARGIN
        return _trend([*found], values, "step", margin) if found else None
    line = curve([run], episode_reward, 1)
    return _trend(line.x, line.mean, axis(run).removesuffix("s"), MARGIN) if line else None


def settled(run: Salvaged, after: int) -> Trend | None:
    """The trend of backend ppo's returns from so many steps on. None without a point there."""
    found = neural.line(run.batches, neural.RETURN, 1)
    values, later = [*found.values()], sum(steps > after for steps in found)
    margin = MARGIN * (max(values) - min(values)) if values else MARGIN
    return _trend([*found], values, "step", margin, later) if later else None


def _trend(
    x: Sequence[int], values: Sequence[float], unit: str, margin: float, last: int | None = None
) -> Trend:
    """Of the `last` points; None: of the last third."""
    third = len(values) // 3 if last is None else last
    start = len(values) - max(third, 1)
    if third < FEWEST:
        return Trend("too short to say", unit, x[start], x[-1], third)
    change, z = trend(_averaged(values[start:]))
    verdict: Verdict = "unclear"
    p = erfc(abs(z) / sqrt(2))
    if p < 1 - LEVEL:
        verdict = "still rising" if z > 0 else "still falling"
    elif -margin < change.low and change.high < margin:
        verdict = "flat"
    return Trend(verdict, unit, x[start], x[-1], third, change, p, margin)


def _averaged(values: Sequence[float]) -> list[float]:
    """At most _MOST points, each the mean of as many neighbours."""
    import numpy as np

    return [float(part.mean()) for part in np.array_split(values, min(_MOST, len(values)))]


def trend(values_T: Sequence[float]) -> tuple[Interval, float]:
    """Sen's slope times the length of the series, shape (T,), with its 95 % interval, and Mann and
    Kendall's z, ties taken into account: above 0 where later values tend to be higher.

    >>> trend([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])[0].mean
    9.0
    """
    import numpy as np

    values, count = np.array(values_T, dtype=float), len(values_T)
    i, j = np.triu_indices(count, 1)
    gaps = values[j] - values[i]
    _, ties = np.unique(values, return_counts=True)
    spread = count * (count - 1) * (2 * count + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()
    deviation, s = sqrt(spread / 18), float(np.sign(gaps).sum())
    z = copysign((abs(s) - 1) / deviation, s) if s else 0.0
    slopes = np.sort(gaps / (j - i)) * (count - 1)
    half = NORMAL * deviation
    low = max(0, int((len(slopes) - half) / 2))
    high = min(len(slopes) - 1, int((len(slopes) + half) / 2))
    return Interval(float(np.median(slopes)), float(slopes[low]), float(slopes[high])), z
