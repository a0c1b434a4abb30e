"""The orders in which a judge sees siblings, and the siblings' values from its ratings.

The ranking model estimates values from ratings in several orders of presentation:

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

import math
from collections.abc import Sequence

from orchestry.core.seeds import shuffled

Order = tuple[int, ...]
"""The items by place: order[0] is shown first."""
RIDGE = 0.5
"""Variance of the noise over that of the place effects. Between 0.3 and 1 it
matters only for odd numbers of calls and a bias as large as the differences in worth."""
DIGITS = 12
"""Decimals of a fitted value; further digits are rounding errors that would break ties."""


def fit(
    ratings_R_G: Sequence[Sequence[float]],
    orders_R_G: Sequence[Sequence[int]],
) -> list[float]:
    """Worths of the G items, in [0, 1] as the ratings are.

    `ratings_R_G[r][i]` is item i's rating in call r; `orders_R_G[r][p]` the item shown at place p.
    """
    import numpy as np

    orders = np.array(orders_R_G)
    calls, size = orders.shape
    shown = np.take_along_axis(np.array(ratings_R_G), orders, axis=1).ravel()  # by call and place
    items, places = np.eye(size)[orders.ravel()], np.tile(np.eye(size), (calls, 1))
    ridge = np.hstack([np.zeros((size, size)), math.sqrt(RIDGE) * np.eye(size)])
    design = np.vstack([np.hstack([items, places]), ridge])
    fitted = np.linalg.lstsq(design, np.concatenate([shown, np.zeros(size)]))[0]
    worths: list[float] = np.clip(fitted[:size].round(DIGITS), 0.0, 1.0).tolist()
    return worths


def balanced(size: int, repeats: int, seed: int) -> tuple[Order, ...]:
    """`repeats` orders of `size` items, by seed; the first is a plain shuffle.

    The second of each two is the reverse of the first, so that all items have the same mean place
    after an even number. Pairs are rows of a Williams design (Williams 1949, "Experimental designs
    balanced for the estimation of residual effects of treatments"): after a whole design, `size`
    orders for an even size and twice as many for an odd one, each item was in each place, and
    right behind each other item, equally often. Longer series are designs on fresh shuffles.
    """
    orders = list[Order]()
    design = 0
    while len(orders) < repeats:
        items = shuffled(size, seed, "orders", design)
        for turn in _spread(size // 2 if size % 2 == 0 else size):
            row = tuple(items[(place + turn) % size] for place in _zigzag(size))
            orders += [row, row[::-1]]
        design += 1
    return tuple(orders[:repeats])


def _zigzag(size: int) -> list[int]:
    """The first row of a Williams square: 0, 1, size - 1, 2, size - 2, and so on."""
    return [(place + 1) // 2 if place % 2 else -(place // 2) % size for place in range(size)]


def _spread(count: int) -> list[int]:
    """The numbers below `count` in bit-reversed order, so that neighbours are far apart."""
    width = count.bit_length()
    return sorted(range(count), key=lambda number: f"{number:0{width}b}"[::-1])


def sign(first: float, second: float) -> int:
    """+1, 0 or -1; a difference within rounding error is a tie."""
    return 0 if math.isclose(first, second, abs_tol=1e-9) else (1 if first > second else -1)


def spearman(left_G: Sequence[float], right_G: Sequence[float]) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 if one side is all tied."""
    import numpy as np

    a, b = np.array(ranks(left_G)), np.array(ranks(right_G))
    scale = math.sqrt((a @ a) * (b @ b))
    return float(a @ b) / scale if scale else 0.0


def ranks(values_G: Sequence[float]) -> list[float]:
    """Centred ranks: half of (how many are below minus how many are above)."""
    return [sum(sign(value, other) for other in values_G) / 2.0 for value in values_G]
