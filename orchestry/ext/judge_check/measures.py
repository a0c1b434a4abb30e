"""Measures a judge from its readings, and gives advice: pure arithmetic on pairs.

Two readings of a pair differ by |s - t| / 2, where s and t are +1, 0 or -1 (first ahead, tie,
second ahead). So a tie against an order is half a flip.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from orchestry.core.intervals import NORMAL_95, student_95, wilson
from orchestry.core.types import Frozen, Outcome
from orchestry.judge.prompt import TOP
from orchestry.judge.ranking import Order, fit, sign, spearman

if TYPE_CHECKING:
    from numpy.typing import NDArray

Level = Literal["unmeasured", "unusable", "chance", "unsure", "usable", "trustworthy"]
CHANCE = 0.5
"""Agreement of a coin. A judge is useful only if its whole interval is above."""
_HOPELESS = 0.65
"""If the interval contains chance and ends below this, more problems would not help: at best the
judge is right in two of three pairs."""
TRUSTED = 0.75
"""At this agreement (low end of the interval) a judge errs at most half as often as a coin."""
MOST_MALFORMED = 0.2
"""If more answers than this share are malformed, the calls are better spent on samples."""
LARGE_EFFECT = 1.0
"""Position effect, in points, from which neighbours on the ten-point scale swap."""
LARGE_EXCESS = 0.1
"""Share of pairs that a swap flips, minus the share that a repeat flips: the effect of position.
Flips by chance are common (13.6 % of pairs in published measurements)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One call on one set: the judge's numbers in [0, 1] by child; empty if malformed."""

    order: Order
    draw: int
    """The sample number of the same question."""
    outcome: Outcome
    numbers_G: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sheet:
    """All readings of one problem's set: an order and its reverse, each drawn twice."""

    problem: str
    worths_G: tuple[float, ...]
    readings: tuple[Reading, ...]

    def usable(self) -> list[Reading]:
        """Those that hold numbers."""
        return [reading for reading in self.readings if reading.numbers_G]


class Share(Frozen):
    """A share of pairs, with a 95 % interval over problems."""

    value: float
    low: float
    high: float
    pairs: int


class JudgeMeasures(Frozen):
    """The results of a check. A figure is None if no pair shows it."""

    swap_consistency: Share | None
    """Pairs ordered alike in an order of presentation and in its reverse."""
    repeat_flips: Share | None
    """Pairs whose order flips when the same question is drawn again."""
    position_effect: float | None
    """Points (of 10) that a candidate gains, on average, by standing first instead of last."""
    agreement: Share | None
    """Pairs of different scores that one call orders rightly; ties count half."""
    agreement_twice: Share | None
    """The same for two calls in opposite orders, combined as `judge.repeats=2` does."""
    rank_correlation: float | None
    """Spearman's rank correlation of one call's numbers with the true scores, mean over problems.
    Kendall's tau-a is 2 * agreement - 1."""
    rank_correlation_twice: float | None
    tied: float | None
    """Share of the pairs of different scores that one call ties."""
    verdicts: dict[str, int]
    """How many questions were rated, rated after a repair, and left malformed."""


def measure(sheets: Sequence[Sheet]) -> JudgeMeasures:
    """The figures of finished problems."""
    singles = [[reading.numbers_G for reading in sheet.usable()] for sheet in sheets]
    doubles = [_combined(sheet) for sheet in sheets]
    worths = [sheet.worths_G for sheet in sheets]
    flips = share(_compared(sheet, _again, flip) for sheet in sheets)
    return JudgeMeasures(
        swap_consistency=share(_compared(sheet, _swapped, _alike) for sheet in sheets),
        repeat_flips=flips,
        position_effect=_mean([gain for sheet in sheets for gain in _gains(sheet)]),
        agreement=share(map(_right, worths, singles)),
        agreement_twice=share(map(_right, worths, doubles)),
        rank_correlation=_mean_correlation(worths, singles),
        rank_correlation_twice=_mean_correlation(worths, doubles),
        tied=_mean([tie for each in map(_ties, worths, singles) for tie in each]),
        verdicts=dict(Counter(r.outcome for sheet in sheets for r in sheet.readings)),
    )


def share(values_by_problem: Iterable[Sequence[float]]) -> Share | None:
    """The mean of all pairs' values in [0, 1], with its interval; None if there are none.

    Wilson's score interval at the effective sample size: p (1 - p) over the variance between
    problems, corrected for the degrees of freedom (Korn and Graubard 1998, "Confidence intervals
    for proportions with small expected number of positive counts estimated from survey data").
    Pairs of one problem are not independent, and a perfect score has an interval all the same.
    """
    groups = [values for values in values_by_problem if values]
    pairs = sum(map(len, groups))
    if not pairs:
        return None
    mean = min(1.0, math.fsum(value for values in groups for value in values) / pairs)
    low, high = wilson(mean, _effective(groups, mean, pairs))
    return Share(value=mean, low=low, high=high, pairs=pairs)


def _effective(groups: Sequence[Sequence[float]], mean: float, pairs: int) -> float:
    """The effective number of independent pairs; one problem alone counts as one pair."""
    count = len(groups)
    if count < 2:
        return 1.0
    residuals = [math.fsum(values) - mean * len(values) for values in groups]
    variance = count / (count - 1) * math.fsum(r * r for r in residuals) / pairs**2
    spread = mean * (1.0 - mean)
    size = min(float(pairs), spread / variance) if variance > 1e-12 else float(pairs)
    return max(1.0, size * (NORMAL_95 / student_95(count - 1)) ** 2)


# --- pairs ----------------------------------------------------------------------------------------


def flip(left_P: NDArray[Any], right_P: NDArray[Any]) -> NDArray[Any]:
    """The distance of the pairs' signs: 0 equal, 0.5 tie against order, 1 opposite."""
    apart: NDArray[Any] = abs(left_P - right_P) / 2
    return apart


def _alike(left_P: NDArray[Any], right_P: NDArray[Any]) -> NDArray[Any]:
    return 1.0 - flip(left_P, right_P)


def _signs(values_G: Sequence[float]) -> NDArray[Any]:
    """The sign of each pair of candidates (0, 1), (0, 2), ..., (1, 2), ...; shape (P,)."""
    import numpy as np

    return np.array([sign(one, other) for one, other in combinations(values_G, 2)])


def _swapped(one: Reading, other: Reading) -> bool:
    return one.draw == other.draw and one.order != other.order


def _again(one: Reading, other: Reading) -> bool:
    return one.draw != other.draw and one.order == other.order


def _compared(
    sheet: Sheet,
    goes_with: Callable[[Reading, Reading], bool],
    score: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]],
) -> list[float]:
    """For each pair of candidates, its mean score over matching pairs of readings."""
    scores = [
        score(_signs(a.numbers_G), _signs(b.numbers_G))
        for a, b in combinations(sheet.usable(), 2)
        if goes_with(a, b)
    ]
    return _means(scores)


def _right(worths_G: Sequence[float], ratings_R_G: Sequence[Sequence[float]]) -> list[float]:
    """For each pair of different scores, the share of ratings with the right order; ties count
    half."""
    true = _signs(worths_G)
    return _means([_alike(true, _signs(row))[true != 0] for row in ratings_R_G])


def _ties(worths_G: Sequence[float], ratings_R_G: Sequence[Sequence[float]]) -> list[float]:
    """1 if a rating ties a pair of different scores, else 0; per rating and pair."""
    true = _signs(worths_G)
    return [float(tie) for row in ratings_R_G for tie in (_signs(row) == 0)[true != 0]]


def _means(rows: Sequence[NDArray[Any]]) -> list[float]:
    """Column by column; [] without rows."""
    import numpy as np

    means: list[float] = np.mean(rows, axis=0).tolist() if rows else []
    return means


# --- readings of one problem ----------------------------------------------------------------------


def _combined(sheet: Sheet) -> list[tuple[float, ...]]:
    """The result of `judge.repeats=2` for each draw: the fit of its usable readings."""
    rows = []
    for draw in sorted({reading.draw for reading in sheet.readings}):
        of_draw = [reading for reading in sheet.usable() if reading.draw == draw]
        if of_draw:
            ratings_R_G = [reading.numbers_G for reading in of_draw]
            rows.append(tuple(fit(ratings_R_G, [reading.order for reading in of_draw])))
    return rows


def _gains(sheet: Sheet) -> list[float]:
    """Points that the candidates at both ends gain by being first instead of last."""
    gains = []
    for one, other in combinations(sheet.usable(), 2):
        if _swapped(one, other):
            for here, there in ((one, other), (other, one)):
                first = here.order[0]
                gains.append(TOP * (here.numbers_G[first] - there.numbers_G[first]))
    return gains


def _mean_correlation(
    worths: Sequence[Sequence[float]], ratings: Sequence[Sequence[Sequence[float]]]
) -> float | None:
    """Mean over problems of the mean over a problem's ratings."""
    return _mean(
        [
            fmean(spearman(row, worths_G) for row in rows)
            for worths_G, rows in zip(worths, ratings, strict=True)
            if rows
        ]
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


# --- advice ---------------------------------------------------------------------------------------


class Advice(Frozen):
    """Whether to use the judge: `level` for programs, `text` for people."""

    level: Level
    text: str


def advise(found: JudgeMeasures) -> Advice:
    """The advice, with its figures."""
    total = sum(found.verdicts.values())
    malformed = found.verdicts.get("malformed", 0) / total if total else 0.0
    if malformed > MOST_MALFORMED:
        return _advice(
            "unusable", f"{malformed:.0%} of its answers can't be read: leave the judge off"
        )
    once, twice = found.agreement, found.agreement_twice
    if once is None or twice is None:
        return _advice("unmeasured", "no pair of different scores was judged: nothing is known")
    best = max(once, twice, key=lambda each: each.low)
    if best.low <= CHANCE:
        return _at_chance(once)
    return _above_chance(found, once, twice)


def _at_chance(once: Share) -> Advice:
    figures = f"agrees with the task's scores on {_figures(once)}"
    if once.high < _HOPELESS:
        return _advice("chance", f"{figures}, no better than chance: leave the judge off")
    return _advice(
        "unsure",
        f"{figures}, which does not rule out chance: leave the judge off, or ask on more "
        "problems (--problems)",
    )


def _above_chance(found: JudgeMeasures, once: Share, twice: Share) -> Advice:
    placed = _placed(found)
    if once.low >= TRUSTED and not placed:
        text = f"trustworthy: agrees with the task's scores on {_figures(once)}"
        return _advice("trustworthy", f"{text}, and places do not sway it")
    if placed and twice.low >= TRUSTED:
        text = f"trustworthy with judge.repeats=2: agrees on {_figures(twice)}; one call is swayed"
        return _advice("trustworthy", f"{text} by places ({placed})")
    if placed or once.low <= CHANCE or twice.value > once.value + LARGE_EXCESS:
        why = f"; one call is swayed by places ({placed})" if placed else ""
        text = f"usable with judge.repeats=2: agrees with the task's scores on {_figures(twice)}"
        return _advice("usable", f"{text}{why}")
    return _advice("usable", f"usable: agrees with the task's scores on {_figures(once)}")


def _placed(found: JudgeMeasures) -> str:
    """How positions influence the judge; '' if they do not."""
    effect, swap, repeat = found.position_effect, found.swap_consistency, found.repeat_flips
    if effect is not None and abs(effect) >= LARGE_EFFECT:
        return f"standing first adds {effect:+.1f} points"
    if swap and repeat and (excess := 1.0 - swap.value - repeat.value) >= LARGE_EXCESS:
        return f"a swap flips {excess:.0%} of the pairs more than a repeat does"
    return ""


def _figures(share: Share) -> str:
    return (
        f"{share.value:.0%} of {share.pairs} pairs (95 % interval {share.low:.0%} to "
        f"{share.high:.0%})"
    )


def _advice(level: Level, text: str) -> Advice:
    return Advice(level=level, text=text)
