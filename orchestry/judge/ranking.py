"""The ranking model: what siblings are worth, from ratings in several orders of presentation.

    rating of item i in call r = worth of i + effect of its place in call r + noise

fitted by least squares with a ridge on the place effects, which is the posterior mean where these
are drawn from a normal distribution (a two-way layout with a random place effect: Henderson 1975,
"Best linear unbiased estimation and prediction under a selection model"). After one call, places
and items can't be told apart: the effects shrink to zero, and worths are the ratings. In a balanced
design the worths are plain means; after an odd number of calls, or where a call was lost, they are
better than these. The alternative is a model of the ranks alone, such as Bradley-Terry with a place
term, which forgets by how much one rating exceeds another. Tried on the planted judge of
benchmarks/quality/planted_judge.py with one to four calls, it found the planted order less well or
equally in all forms of the bias but one: for a pair of calls and a bias towards both ends, which a
reversed order can't cancel, it was ahead by 0.02 of rank correlation for four siblings.
"""

from __future__ import annotations

from collections.abc import Sequence

RIDGE = 0.5
"""Variance of the noise over that of the place effects. Between 0.3 and 1 it
matters only for odd numbers of calls and a bias as large as the differences in worth."""
TOLERANCE = 1e-9


def fit(
    ratings_R_G: Sequence[Sequence[float]],
    orders_R_G: Sequence[Sequence[int]],
) -> list[float]:
    """Worths of the G items, in [0, 1] as the ratings are.

    `ratings_R_G[r][i]` is item i's rating in call r; `orders_R_G[r][p]` the item shown at place p.
    """
    size = len(ratings_R_G[0])
    effects_G, step = [0.0] * size, 1.0
    while step > TOLERANCE:  # each half has a closed solution; alternating they converge
        worths_G = _worths(ratings_R_G, orders_R_G, effects_G)
        moved_G = _effects(ratings_R_G, orders_R_G, worths_G)
        step = max(abs(a - b) for a, b in zip(moved_G, effects_G, strict=True))
        effects_G = moved_G
    return [min(1.0, max(0.0, worth)) for worth in worths_G]


def _worths(
    ratings_R_G: Sequence[Sequence[float]],
    orders_R_G: Sequence[Sequence[int]],
    effects_G: Sequence[float],
) -> list[float]:
    """The best worths for given place effects."""
    sums_G = [0.0] * len(effects_G)
    for ratings, order in zip(ratings_R_G, orders_R_G, strict=True):
        for effect, item in zip(effects_G, order, strict=True):
            sums_G[item] += ratings[item] - effect
    return [total / len(ratings_R_G) for total in sums_G]


def _effects(
    ratings_R_G: Sequence[Sequence[float]],
    orders_R_G: Sequence[Sequence[int]],
    worths_G: Sequence[float],
) -> list[float]:
    """The best place effects for given worths."""
    sums_G = [0.0] * len(worths_G)
    for ratings, order in zip(ratings_R_G, orders_R_G, strict=True):
        for place, item in enumerate(order):
            sums_G[place] += ratings[item] - worths_G[item]
    return [total / (len(ratings_R_G) + RIDGE) for total in sums_G]
