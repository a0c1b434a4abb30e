"""Paired sequential tests: what goes on trial, may enter a prompt, and has to leave it.

A trial bets on the differences d in [-1, 1] of pairs of episodes, candidate less current. Wealth
starts at the trial's level; a bet b in [0, 1), fixed before the pair is seen, turns wealth w into
w (1 + b d). Where the mean difference is at most 0, whatever its distribution, wealth is a
non-negative supermartingale, so it ever reaches 1 with a chance of at most the level (Ville's
inequality; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
JRSS B 2024, section 4). So a look after every pair costs nothing, and a trial may pause.

Most of the wealth bets for a date. Because the trial ends after N pairs, wealth is worth most if it
copies an option that pays 1 if the sum of differences touches a line before then, as a
group-sequential test with O'Brien-Fleming bounds does. For a Brownian path with m pairs left, at z
standard deviations (of the sum of those m) below the line, the option costs 2 Phi(-z) (reflection),
and its hedge holds b = phi(z) / (Phi(-z) sd sqrt(m)). Here z is read off the wealth itself before
each pair, so a hedge that lags corrects itself. Only power rests on Brown and on the sd estimate;
validity rests on neither. The rest of the wealth bets for growth (Kelly) on a gain of LARGE, so
that a large gain is found in fewer pairs.

N is as many pairs as show a gain of GAIN with a chance of POWER at the noise seen so far, at most
`most`; where `most` is too few, the trial plans for the larger gain that these can show. Where
noise is so small that the bet is cut at LARGEST_BET, N leaves room for bets of that size to win.

Which candidates are worth keeping, and which one goes on trial next, is said by the Pareto front
over dev problems of GEPA (Agrawal et al., arXiv 2507.19457, algorithm 2): a candidate that is best
on some problem holds something that the others lack, even where its mean is lower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Literal

from orchestry.core.errors import TaskError
from orchestry.core.types import Frozen

GAIN = 0.05
"""Mean difference that a trial is planned to find."""
LARGE = 0.1
"""Mean difference whose finding, or whose opposite, ends a trial soon."""
LARGE_SHARE = 0.25
"""Share of the wealth that bets on a gain of LARGE."""
POWER = 0.9
"""Chance of finding it, in the plan."""
HOPELESS = 0.1
"""A trial ends once the planned gain, if real, would be found with less than this chance."""
FIRST = 8
"""Pairs before a trial may be called hopeless."""
TYPICAL_SD, TYPICAL_WEIGHT = 0.3, 8
"""Guess at the sd of a difference before pairs are seen, and the pairs it counts as."""
LARGEST_BET = 0.9
ROOM = 1.6
"""Pairs planned at least, as a multiple of those that win at LARGEST_BET without any noise."""
SMALLEST_WEALTH = 1e-15
"""Below it the normal tail underflows; a trial as poor as that is lost anyway."""
LOSS_LEVEL = 0.05
"""Chance at most that what does no harm is called a clear loss."""
COVERAGE = 0.95
COVERAGE_PAIRS = 300
"""Pairs after which the interval is narrowest for its noise; it is valid after any number."""
PRECISION = 5e-4
"""Of the interval's ends, which err to the wider side."""
_NORMAL = NormalDist()
_Z_POWER = _NORMAL.inv_cdf(POWER)
_INTERVAL_BET = math.sqrt(2.0 * math.log(2.0 / (1.0 - COVERAGE)) / COVERAGE_PAIRS)


class Ruling(Frozen):
    """Where a trial stands after `pairs` pairs.

    `low` and `high` are the ends of a 95 % betting confidence sequence for the mean difference,
    which holds at whatever pair the trial stops. `e_value` is the wealth over the level: evidence
    against the hypothesis that the candidate is no better (in `retire`: that it does no harm).
    """

    verdict: Literal["accept", "reject", "open"]
    why: str
    """`won`, `clear loss`, `no gain in N pairs`, `still helps`; '' while the trial is open."""
    pairs: int
    lift: float
    """Mean difference, in units of the reward; 0 before the first pair."""
    low: float
    high: float
    e_value: float


def level(alpha: float, number: int) -> float:
    """Chance of a false acceptance granted to the trial after `number` - 1 rejected ones.

    alpha / (number (number + 1)) sums to alpha over all numbers, so the run needs no horizon. An
    accepted trial uses no number up: a true gain was no false one, and after a false one there is
    nothing left to protect. This is the fallback rule of Tian and Ramdas ("Online control of the
    familywise error rate", 2021) with all of an accepted trial's level handed on. It holds for
    candidates chosen by any use of earlier data, because a trial's pairs are fresh: the chance
    of a first false acceptance is at most the sum of the levels of the null trials before it, and
    these have distinct numbers. A trial given up while open counts as rejected.
    """
    if number < 1:
        raise ValueError(f"trials are numbered from 1, not {number}: count the rejected ones + 1")
    return alpha / (number * (number + 1))


def rule(differences_N: Iterable[float], level: float, most: int) -> Ruling:
    """Rules on a trial from its differences so far, each in [-1, 1], in the order played.

    Reads no further than the pair at which the trial ends, so it does not matter how many pairs
    were played at a time. `level` and `most` have to stay what they were at the first pair.
    Accepts where wealth reaches 1. Rejects as a `clear loss` where a bettor on a loss reaches
    1 / LOSS_LEVEL times its start; as `no gain in N pairs` after the planned pairs, or before
    where the planned gain, even if real, is no longer likely to be shown.
    Raises TaskError for a difference outside [-1, 1] or NaN.
    """
    trial = _Trial(level, most)
    seen, bets = list[float](), list[float]()
    for difference in differences_N:
        _check(difference)
        seen.append(difference)
        bets.append(min(LARGEST_BET, _INTERVAL_BET / trial.sd))
        trial.see(difference)
        if trial.verdict != "open":
            break
    low, high = _interval(seen, bets)
    return Ruling(
        verdict=trial.verdict,
        why=_why(trial),
        pairs=trial.pairs,
        lift=sum(seen) / len(seen) if seen else 0.0,
        low=low,
        high=high,
        e_value=trial.e_value,
    )


def retire(differences_N: Iterable[float], most: int) -> Ruling:
    """Rules on an accepted behaviour from differences with it less without it, in [-1, 1].

    The same test, turned round: verdict `reject`, so retire it, where a loss is shown at
    LOSS_LEVEL, or where the mean is not above 0 when no loss of GAIN is likely to be shown any
    more, or the planned pairs are through. `accept`: it still helps. Raises TaskError as `rule`.
    """
    loss = rule((-difference for difference in differences_N), LOSS_LEVEL, most)
    turned = loss.model_copy(
        update={"lift": 0.0 - loss.lift, "low": 0.0 - loss.high, "high": 0.0 - loss.low}
    )
    if loss.verdict == "open":
        return turned
    if loss.verdict == "accept":
        return turned.model_copy(update={"verdict": "reject", "why": "clear loss"})
    if turned.lift > 0.0:
        return turned.model_copy(update={"verdict": "accept", "why": "still helps"})
    return turned.model_copy(update={"why": f"no gain in {loss.pairs} pairs"})


@dataclass(slots=True)
class _Trial:
    """The betting after `pairs` differences: an e-value, which wins at 1 / level."""

    level: float
    most: int
    pairs: int = 0
    squares: float = TYPICAL_WEIGHT * TYPICAL_SD**2
    dated: float = 1.0 - LARGE_SHARE
    """The part that bets for a date; `large` bets on a large gain, `against` on a large loss."""
    large: float = LARGE_SHARE
    against: float = LOSS_LEVEL
    sd: float = TYPICAL_SD
    z_start: float = 0.0
    bet: float = 0.0
    ended: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0 or self.most < 1:
            raise ValueError(
                f"a trial needs a level in (0, 1) and pairs >= 1, not {self.level}, {self.most}"
            )
        self.z_start = _distance(self.level)
        self._plan()

    @property
    def verdict(self) -> Literal["accept", "reject", "open"]:
        if self.won:
            return "accept"
        return "reject" if self.lost or self.ended else "open"

    @property
    def e_value(self) -> float:
        return self.dated + self.large

    @property
    def won(self) -> bool:
        return self.level * self.e_value >= 1.0

    @property
    def lost(self) -> bool:
        return self.against >= 1.0

    def see(self, difference: float) -> None:
        kelly = min(LARGEST_BET, LARGE / self.sd**2)
        self.dated *= 1.0 + self.bet * difference
        self.large *= 1.0 + kelly * difference
        self.against *= 1.0 - kelly * difference
        self.pairs += 1
        self.squares += difference * difference
        if not self.won:
            self._plan()

    def _plan(self) -> None:
        """The next bet, from what was seen before it; and whether another one pays for its cost."""
        self.sd = math.sqrt(self.squares / (TYPICAL_WEIGHT + self.pairs))
        span = self.z_start + _Z_POWER
        room = -ROOM * math.log(self.level) / math.log1p(LARGEST_BET * GAIN)
        planned = min(float(self.most), max((span * self.sd / GAIN) ** 2, room))
        left = max(1.0, planned - self.pairs)
        z = _distance(self.level * self.dated)
        self.bet = min(LARGEST_BET, _NORMAL.pdf(z) / _NORMAL.cdf(-z) / (self.sd * math.sqrt(left)))
        gain = max(GAIN, span * self.sd / math.sqrt(planned))
        drift = gain * math.sqrt(left) / self.sd  # that the pairs left would bring, in their sds
        done = self.pairs >= planned or _NORMAL.cdf(drift - z) < HOPELESS
        self.ended = self.pairs >= self.most or (done and self.pairs >= FIRST)


def _distance(wealth: float) -> float:
    """How many sds of the pairs left the sum has to rise to win: z with 2 Phi(-z) = wealth."""
    return -_NORMAL.inv_cdf(max(wealth, SMALLEST_WEALTH) / 2.0)


def _interval(differences_N: list[float], bets_N: list[float]) -> tuple[float, float]:
    """All means that no bettor at level (1 - COVERAGE) / 2 per side has refuted, in [-1, 1]."""
    if not differences_N:
        return -1.0, 1.0
    middle = sum(differences_N) / len(differences_N)
    low = _refuted(differences_N, bets_N, middle)
    return low, -_refuted([-d for d in differences_N], bets_N, -middle)


def _refuted(differences_N: list[float], bets_N: list[float], middle: float) -> float:
    """The largest mean up to `middle` at which bets on more have won, to PRECISION.

    Wealth falls in the mean bet against, also where a bet has to be cut so as not to go broke.
    """
    import numpy as np

    differences, bets = np.array(differences_N), np.array(bets_N)
    low, high = -1.0, middle
    while high - low > PRECISION:
        mean = (low + high) / 2.0
        cut_N = np.minimum(bets, LARGEST_BET / (1.0 + mean))
        wealth = np.prod(1.0 + cut_N * (differences - mean))
        if wealth >= 2.0 / (1.0 - COVERAGE):
            low = mean
        else:
            high = mean
    return low


def _why(trial: _Trial) -> str:
    if trial.verdict == "open":
        return ""
    if trial.verdict == "accept":
        return "won"
    return "clear loss" if trial.lost else f"no gain in {trial.pairs} pairs"


def _check(difference: float) -> None:
    if not -1.0 <= difference <= 1.0:  # NaN fails this too
        raise TaskError(
            f"a pair of dev episodes differs by {difference}, which is outside [-1, 1]: "
            "let the task's reward be in [0, 1]"
        )


Scores = Mapping[str, float]
"""Dev problem -> mean score, or lift, of one candidate there."""


def front(scores: Mapping[str, Scores]) -> list[str]:
    """Ids, sorted, of the candidates that are best on some problem and dominated by no other.

    Candidates may have been played on different problems. On each problem only those who played
    it compete. One dominates another if it played all of the other's problems, is nowhere worse
    there, and somewhere better: a problem that one alone has played speaks for that one. So the
    order has no cycles, and every problem's best score is reached within the front. Candidates
    with equal scores stay together.
    """
    tops = dict[str, float]()
    for own in scores.values():
        for problem, score in own.items():
            tops[problem] = max(score, tops.get(problem, score))
    leaders = [id for id, own in sorted(scores.items()) if any(own[p] == tops[p] for p in own)]
    return [
        id for id in leaders if not any(_dominates(scores[other], scores[id]) for other in leaders)
    ]


def best(lifts: Mapping[str, Scores], ids: Iterable[str]) -> str:
    """Of these ids the one with the highest mean lift; of equal ones the lowest id.

    A lift is a candidate's score on a problem less the current library's on the same draws, so
    that candidates may be compared although they played different problems.
    """
    return min(ids, key=lambda id: (-fmean(lifts[id].values()), id))


def _dominates(one: Scores, other: Scores) -> bool:
    """Whether `one` is nowhere worse on the other's problems, and somewhere better."""
    if not other.keys() <= one.keys():
        return False
    return all(one[p] >= other[p] for p in other) and any(one[p] > other[p] for p in other)
