"""A race: every behaviour that may help is tested at once, in the same pairs of teams.

A pair plays one dev problem twice with common random numbers. For each behaviour in it, a fair coin
says which of the two teams has the behaviour; the other team has not. What the behaviour gained in
that pair is the reward of the team with it less the reward of the team without it, in [-1, 1]. The
coins are independent, so the mean gain is what the behaviour adds on average over which of the
others are there, its Banzhaf value. This is a factorial design in opposite halves: one pair says as
much of each of ten behaviours as it would say of one alone. The last one in the race is compared
with the team as it stands.

The search adds gains of the same kind, one per episode: last moves of which some samples were
drawn with a behaviour and some without. A behaviour must show a gain in the mean over all that it
is tried on: dev problems, with what the agents before the first tested one said there once in this
run, and last moves of the search, on other problems than those it was made from.

Each behaviour bets on its own gains. A bet b in [0, 1), fixed before the pair is played, turns
wealth w into w (1 + b x). Where the mean gain x is at most 0, wealth is a non-negative
supermartingale, whatever the distribution (Waudby-Smith and Ramdas, "Estimating means of bounded
random variables by betting", JRSS B 2024, section 4). A behaviour is accepted when its wealth
reaches 1.

The run's chance of a false acceptance, alpha, is a pool from which behaviours borrow. One that
leaves gives back what it has left, at most what it borrowed; one that is accepted gives back what
it borrowed. One that would replace others than before begins anew, as if it had left and borrowed
again: its gains say nothing against these. Count as V the pool, the wealth of all behaviours
without a gain, and the loans of all with one. Loans and returns leave V as it is or lower it, and
so do the bets in the mean. V begins at alpha, and a false acceptance needs V >= 1, so the chance of
even one in the whole run is at most alpha (Ville's inequality). Returns hand levels on as the
fallback rule of Tian and Ramdas does ("Online control of the familywise error rate", 2021); that
losers return what they did not lose is new here. Who borrows, plays and leaves may depend on all
that was seen before.

Wealth bets for dates. To reach 1 within m more pairs, it copies an option that pays 1 if the sum of
gains touches a line before then. For a Brownian path at z standard deviations (of the sum of those
m gains) below the line the option costs 2 Phi(-z), and its hedge holds
b = phi(z) / (Phi(-z) sd sqrt(m)). Here z is read off the wealth itself before each pair, so a hedge
that lags corrects itself. A loan is divided among DATES and the end of the run: an early date finds
a large gain in few pairs, the end finds a small one. Only power rests on Brown and on the sd;
validity rests on neither.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import NormalDist
from typing import Literal

from orchestry.core.config import BehaviorsConfig
from orchestry.core.errors import TaskError
from orchestry.core.types import Frozen
from orchestry.store.records import Power

DATES = (24, 72)
"""Pairs by which a part of the wealth bets to win; the rest bets for the end of the run."""
PARTS = (0.2, 0.3, 0.5)
"""Of a loan, by date; the end of the run is the last."""
TYPICAL_SD, TYPICAL_WEIGHT = 0.3, 8
"""Guess at the sd of a gain before pairs are seen, and the pairs it counts as."""
TYPICAL_GAIN = 0.09
"""Sd of the mean gains of behaviours, before pairs are seen: of about 9 points."""
FIRST = 8
"""Pairs before a behaviour may leave."""
HOPELESS = 0.05
"""A behaviour leaves once the chance that it will be accepted is below this."""
LARGEST_BET = 0.9
SMALLEST_WEALTH = 1e-13
"""Below it the normal tail underflows; such a bet is lost anyway."""
LOSS_LEVEL = 0.05
"""Chance at most that an accepted behaviour that does no harm is retired for a loss."""
POWER = 0.8
"""The chance with which a run shows the gain that it says it can show."""
EFFICIENCY = 0.7
"""Share of the pairs that a test of one behaviour at a date fixed before would need as well: the
rest is what racing at any time costs (`python -m benchmarks.quality.acceptance`)."""
COVERAGE = 0.95
COVERAGE_PAIRS = 100
"""Pairs after which the interval is narrowest for its noise; it is valid after any number."""
PRECISION = 5e-4
"""Of the interval's ends, which err to the wider side."""
_NORMAL = NormalDist()
_INTERVAL_BET = math.sqrt(2.0 * math.log(2.0 / (1.0 - COVERAGE)) / COVERAGE_PAIRS)


class Entrant(Frozen):
    """One behaviour in the race. A `retest` is of an accepted one, and bets on a loss."""

    behavior: str
    kind: Literal["candidate", "retest"] = "candidate"
    borrowed: float = 0.0
    """Chance of a false acceptance lent to it so far."""
    wealth: tuple[float, ...] = (0.0,) * len(PARTS)
    """By date; it is accepted, or retired, when the sum reaches 1."""
    gains: tuple[float, ...] = ()
    """Of each pair: reward with it less reward without it, in the order played."""
    calls: int = 0
    """Of the pairs that it was in, with others or alone."""
    usd: float = 0.0
    since: int = 0
    """The first dev draw that counts for it."""

    @property
    def worth(self) -> float:
        """All of its wealth."""
        return math.fsum(self.wealth)

    @property
    def lift(self) -> float:
        """Mean gain; 0 before the first pair."""
        return math.fsum(self.gains) / len(self.gains) if self.gains else 0.0

    @property
    def e_value(self) -> float:
        """Evidence against `no gain` (in a retest `no loss`): 1 / borrowed decides."""
        return self.worth / self.borrowed if self.borrowed else 1.0

    def lent(self, amount: float) -> Entrant:
        """With so much more to bet, divided among the dates that are still to come."""
        dates = (*DATES, math.inf)
        open_ = [
            part if len(self.gains) < date else 0.0 for part, date in zip(PARTS, dates, strict=True)
        ]
        whole = math.fsum(open_)
        more = (has + amount * part / whole for has, part in zip(self.wealth, open_, strict=True))
        return self.model_copy(update={"borrowed": self.borrowed + amount, "wealth": tuple(more)})

    def anew(self, draw: int) -> Entrant:
        """As one that replaces others than before, from that draw on: what it has is a loan."""
        begun = Entrant(behavior=self.behavior, calls=self.calls, usd=self.usd, since=draw)
        return begun.lent(min(self.worth, self.borrowed))

    def seen(self, gain: float, left: float) -> Entrant:
        """After one more pair; at the bets of before, about `left` pairs are left in the run.

        Raises TaskError for a gain outside [-1, 1] or NaN.
        """
        if not -1.0 <= gain <= 1.0:  # NaN fails this too
            raise TaskError(
                f"a pair of dev episodes differs by {gain}, which is outside [-1, 1]: "
                "let the task's reward be in [0, 1]"
            )
        sign = 1.0 if self.kind == "candidate" else -1.0
        bets = self._bets(left)
        wealth = [
            has * (1.0 + bet * sign * gain) for has, bet in zip(self.wealth, bets, strict=True)
        ]
        gains = (*self.gains, gain)
        for place, date in enumerate(DATES):
            if len(gains) == date:  # what did not win by its date goes on for the next
                wealth[place + 1] += wealth[place]
                wealth[place] = 0.0
        return self.model_copy(update={"gains": gains, "wealth": tuple(wealth)})

    def _bets(self, left: float) -> list[float]:
        sd = spread(self.gains)
        spans = [date - len(self.gains) for date in DATES] + [left]
        return [
            bet_of(has, sd, max(1.0, span)) if has > SMALLEST_WEALTH else 0.0
            for has, span in zip(self.wealth, spans, strict=True)
        ]

    def chance(self, left: float, more: float = 0.0) -> float:
        """The chance that it is still accepted in `left` pairs, with `more` to borrow.

        Its mean gain is drawn from what is known of it: a normal prior of sd TYPICAL_GAIN, and its
        gains so far.
        """
        sd, left = spread(self.gains), max(1.0, left)
        sign = 1.0 if self.kind == "candidate" else -1.0
        known = 1.0 / (1.0 / TYPICAL_GAIN**2 + len(self.gains) / sd**2)
        mean = known * sign * math.fsum(self.gains) / sd**2
        line = _distance(min(0.99, self.worth + more))
        reach = mean * math.sqrt(left) / sd - line
        return _NORMAL.cdf(reach / math.sqrt(1.0 + known * left / sd**2))


class Race(Frozen):
    """All that is tested, and what is left to lend."""

    pool: float = 0.0
    entrants: tuple[Entrant, ...] = ()

    @property
    def candidates(self) -> tuple[Entrant, ...]:
        return tuple(one for one in self.entrants if one.kind == "candidate")

    def entered(self, behaviors: Collection[str], kept: float) -> Race:
        """With new candidates, who borrow in equal parts what the pool has beyond `kept`."""
        if not behaviors:
            return self
        loan = max(0.0, self.pool - kept) / len(behaviors)
        new = tuple(Entrant(behavior=id).lent(loan) for id in behaviors)
        return Race(pool=self.pool - loan * len(new), entrants=(*self.entrants, *new))

    def retested(self, behavior: str) -> Race:
        """With an accepted behaviour, to be retired if it does harm."""
        entrant = Entrant(behavior=behavior, kind="retest").lent(LOSS_LEVEL)
        return self.model_copy(update={"entrants": (*self.entrants, entrant)})

    def put(self, entrant: Entrant) -> Race:
        """With this one in the place of the one of its behaviour."""
        entrants = (entrant if one.behavior == entrant.behavior else one for one in self.entrants)
        return self.model_copy(update={"entrants": tuple(entrants)})

    def without(self, entrant: Entrant, returned: float) -> Race:
        """After it has left."""
        rest = tuple(one for one in self.entrants if one.behavior != entrant.behavior)
        return Race(pool=self.pool + returned, entrants=rest)

    def accepted(self, entrant: Entrant) -> Race:
        """After a candidate has won: a true gain was no false one, so its loan is lent again."""
        return self.without(entrant, entrant.borrowed)

    def left(self, entrant: Entrant) -> Race:
        """After a candidate was given up."""
        return self.without(entrant, min(entrant.worth, entrant.borrowed))

    def backed(self, left: float, kept: float) -> Race:
        """What is in the pool beyond `kept` is lent to the likeliest winner."""
        spare = self.pool - kept
        if spare <= 0.0 or not self.candidates:
            return self
        leader = max(self.candidates, key=lambda one: (one.chance(left), one.behavior))
        return self.model_copy(update={"pool": kept}).put(leader.lent(spare))


def interval(gains_N: Sequence[float]) -> tuple[float, float]:
    """The 95 % betting confidence sequence for the mean gain, in [-1, 1].

    It holds at whatever pair the race stops: all means that no bettor at level 2.5 % per side has
    refuted.
    """
    if not gains_N:
        return -1.0, 1.0
    middle = sum(gains_N) / len(gains_N)
    low = _refuted(gains_N, middle)
    return low, -_refuted([-gain for gain in gains_N], -middle)


def _refuted(gains_N: Sequence[float], middle: float) -> float:
    """The largest mean up to `middle` at which bets on more have won, to PRECISION.

    Wealth falls in the mean bet against, also where a bet has to be cut so as not to go broke.
    """
    import numpy as np

    gains = np.array(gains_N)
    before = np.concatenate(([0.0], np.cumsum(gains**2)[:-1]))
    weights = TYPICAL_WEIGHT + np.arange(len(gains))
    sds = np.sqrt((TYPICAL_WEIGHT * TYPICAL_SD**2 + before) / weights)
    bets = np.minimum(LARGEST_BET, _INTERVAL_BET / sds)
    low, high = -1.0, middle
    while high - low > PRECISION:
        mean = (low + high) / 2.0
        cut = np.minimum(bets, LARGEST_BET / (1.0 + mean))
        wealth = np.prod(1.0 + cut * (gains - mean))
        if wealth >= 2.0 / (1.0 - COVERAGE):
            low = mean
        else:
            high = mean
    return low


def spread(gains_N: Sequence[float]) -> float:
    """The sd of gains around 0, from those seen and from what is typical."""
    return spread_of(len(gains_N), math.fsum(gain * gain for gain in gains_N))


def spread_of(count: int, squares: float) -> float:
    """The same, from the number of gains and the sum of their squares."""
    whole = TYPICAL_WEIGHT * TYPICAL_SD**2 + squares
    return math.sqrt(whole / (TYPICAL_WEIGHT + count))


def bet_of(wealth: float, sd: float, pairs: float) -> float:
    """What to bet so as to reach 1 within these pairs: see the head of this file."""
    z = _distance(wealth)
    return min(LARGEST_BET, _NORMAL.pdf(z) / _NORMAL.cdf(-z) / (sd * math.sqrt(pairs)))


def shown(sd: float, pairs: float, level: float) -> float:
    """The gain that so many pairs show with a chance of POWER, at that noise and level."""
    used = max(1.0, EFFICIENCY * pairs)
    return (_distance(level) + _NORMAL.inv_cdf(POWER)) * sd / math.sqrt(used)


def kept_for(update: int, updates: int) -> float:
    """The part of alpha that is kept after that update, from 1, for the candidates of later ones.

    The k-th last update has a weight of k squared: later candidates have fewer pairs to win in.
    """
    weights = [left * left for left in range(max(1, updates), 0, -1)]
    return sum(weights[update:]) / sum(weights)


def pairs_for(gain: float, sd: float, level: float) -> float:
    """How many pairs show that gain with a chance of POWER: the inverse of `shown`."""
    return ((_distance(level) + _NORMAL.inv_cdf(POWER)) * sd / gain) ** 2 / EFFICIENCY


def power_of(config: BehaviorsConfig, updates: int, calls: float, each: float, sd: float) -> Power:
    """What so many calls on dev show, at that many calls per pair and that sd of its gain."""
    gain = shown(sd, calls / each, level_of(config, updates))
    return Power(pairs=calls / each, calls=calls, gain=gain)


def level_of(config: BehaviorsConfig, updates: int) -> float:
    """What one of a first update's candidates borrows."""
    return config.alpha * (1.0 - kept_for(1, updates)) / config.candidates


def _distance(wealth: float) -> float:
    """How many sds of the pairs left the sum has to rise to win: z with 2 Phi(-z) = wealth."""
    return -_NORMAL.inv_cdf(min(1.0, max(wealth, SMALLEST_WEALTH)) / 2.0)
