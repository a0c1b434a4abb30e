"""What a person's ratings say of the judge: how far the two agree, and how to correct the judge.

The correction is a line, by ridge regression towards the identity: with few pairs a richer map,
such as isotonic regression, would repeat their noise. The prior counts as PRIOR pairs on which
judge and person agree, with the judge's numbers spread evenly over [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from orchestry.core.types import Score
from orchestry.judge.ranks import ranks, sign, spearman
from orchestry.store.records import EpisodeRecord, NodeRecord

PRIOR = 10.0
"""How many pairs the belief that the judge is right is worth."""
_SPREAD = 1 / 12
"""Variance of a number that is spread evenly over [0, 1]."""
Pairs = Sequence[tuple[float, float]]
"""(a number, the person's rating), both in [0, 1]."""
Ratings = Mapping[tuple[int, str], float]
"""People's ratings in [0, 1] by episode and node, as journal.ratings gives them."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A judge's number in [0, 1] as a person would have put it: a line, cut off at 0 and 1."""

    slope: float = 1.0
    """At least 0, so that no order is turned round."""
    intercept: float = 0.0
    pairs: int = 0
    """How many it was fitted to."""

    def __call__(self, number: float) -> float:
        return min(1.0, max(0.0, self.intercept + self.slope * number))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a person's ratings and another's numbers go together; None where too few are."""

    count: int
    """Rated nodes for which the other has a number."""
    pairs: int
    """Pairs of these nodes: count (count - 1) / 2."""
    alike: float | None
    """Share of the pairs in the same order; one that only one of the two ties counts half."""
    difference: float | None
    """Mean absolute difference, in [0, 1]."""
    spearman: float | None
    """Rank correlation; None for fewer than 3 nodes, and where either says the same of all."""


def calibration(pairs: Pairs) -> Calibration:
    """The map from the judge's numbers to the person's ratings; the identity for no pairs.

    Minimises the squared errors over the pairs and the prior's, with a slope of at least 0. On the
    pairs themselves its squared error is never above the judge's own.
    """
    centred = [(number - 0.5, rating - number) for number, rating in pairs]
    weight = len(pairs) + PRIOR
    u, e = sum(x for x, _ in centred), sum(y for _, y in centred)
    uu = sum(x * x for x, _ in centred) + PRIOR * _SPREAD
    ue = sum(x * y for x, y in centred)
    tilt = max(-1.0, (ue - u * e / weight) / (uu - u * u / weight))
    shift = (e - tilt * u) / weight  # the best one for this tilt, also where the bound holds it
    return Calibration(1.0 + tilt, shift - 0.5 * tilt, len(pairs))


def agreement(pairs: Pairs) -> Agreement:
    """How far the numbers agree with the person's ratings."""
    alike = [1 - abs(sign(a, c) - sign(b, d)) / 2 for (a, b), (c, d) in combinations(pairs, 2)]
    return Agreement(
        count=len(pairs),
        pairs=len(alike),
        alike=sum(alike) / len(alike) if alike else None,
        difference=sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else None,
        spearman=_spearman(pairs),
    )


def judged_pairs(records: Sequence[EpisodeRecord], ratings: Ratings) -> list[tuple[float, float]]:
    """The judge's number for each rated node, and the person's; in order of play.

    Nodes for which the judge has none are left out.
    """
    found = [(judged(record, node), rating) for record, node, rating in _rated(records, ratings)]
    return [(number, rating) for number, rating in found if number is not None]


def reward_pairs(records: Sequence[EpisodeRecord], ratings: Ratings) -> list[tuple[float, float]]:
    """The task's reward of each rated node, and the person's rating; in order of play."""
    return [(reward(node), rating) for _, node, rating in _rated(records, ratings)]


def judged(record: EpisodeRecord, node: NodeRecord) -> float | None:
    """The judge's own number on the last move up to the node that it rated, in [0, 1].

    By default it rates no leaves, but what it says of a move foretells what comes of it. None
    where it rated no move on the way.
    """
    said = [move.judged for move in record.path(node.id) if move.judged is not None]
    return said[-1] if said else None


def reward(node: NodeRecord) -> float:
    """The task's score of the work at that node, in [0, 1]; NaN for the root, which has none."""
    return Score(parts=node.parts).total


def _rated(
    records: Sequence[EpisodeRecord], ratings: Ratings
) -> Iterator[tuple[EpisodeRecord, NodeRecord, float]]:
    for record in records:
        for node in record.nodes:
            if (record.episode, node.id) in ratings:
                yield record, node, ratings[record.episode, node.id]


def _spearman(pairs: Pairs) -> float | None:
    numbers, ratings = [a for a, _ in pairs], [b for _, b in pairs]
    if len(pairs) < 3 or not any(ranks(numbers)) or not any(ranks(ratings)):
        return None
    return spearman(numbers, ratings)
