"""Shapley values of simultaneous agents, from samples of their actions.

The game of a joint action: a coalition keeps its actions, the others' actions are replaced by their
samples, and the coalition's value is the mean score of the result (an interventional baseline, as
in Lundberg & Lee 2017, with the team's own policies as the distribution).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import comb

MAX_MIXES = 512
"""Most mixed actions scored for one joint action; each may cost a run in the sandbox."""


@dataclass(frozen=True, slots=True)
class Mix:
    """One draw of a sample of every agent, and what the coalitions' actions score against it.

    `scores` has shape (2^n,): entry S, read as bits, is the score where the agents of S keep their
    own actions and the others take those drawn.
    """

    drawn: tuple[int, ...]
    scores: tuple[float, ...]


def draws(samples: int, agents: int, seed: int, limit: int = MAX_MIXES) -> list[tuple[int, ...]]:
    """Which sample each agent takes, one draw per row: all combinations, or as many as fit `limit`.

    If they don't fit, the draws form Latin squares, so that every sample is used equally often; []
    if not even one draw fits.
    """
    if samples**agents <= limit:
        return list(product(range(samples), repeat=agents))
    rng, found = random.Random(seed), list[tuple[int, ...]]()
    count = limit >> agents
    while len(found) < count:
        columns = [rng.sample(range(samples), samples) for _ in range(agents)]
        found += islice(zip(*columns, strict=True), count - len(found))
    return found


def shapley(scores: Sequence[float]) -> tuple[float, ...]:
    """Each player's mean marginal score over all orders; shape (2^n,) to (n,).

    They add up to the score of all minus the score of none (Shapley 1953).
    """
    players = len(scores).bit_length() - 1
    return tuple(
        sum(
            (scores[rest | 1 << i] - scores[rest]) / (players * comb(players - 1, rest.bit_count()))
            for rest in range(len(scores))
            if not rest >> i & 1
        )
        for i in range(players)
    )


def mean_scores(mixes: Sequence[Mix]) -> tuple[float, ...]:
    """The game's values: the coalitions' mean scores over the draws."""
    import numpy as np

    means: list[float] = np.mean([mix.scores for mix in mixes], axis=0).tolist()
    return tuple(means)


def uneven(mixes: Sequence[Mix]) -> tuple[float, ...]:
    """Each agent's Shapley value minus their mean; sums to zero."""
    values = shapley(mean_scores(mixes))
    mean = sum(values) / len(values)
    return tuple(value - mean for value in values)


def jackknife(mixes: Sequence[Mix]) -> float:
    """The variance of one entry of `uneven`, the mean over agents.

    Each sample index is left out in turn, for all agents (the jackknife of a V-statistic). With
    fewer than two indices, the variance is that of a uniform number in [-1, 1].
    """
    import numpy as np

    indices = sorted({index for mix in mixes for index in mix.drawn})
    rest = [[mix for mix in mixes if index not in mix.drawn] for index in indices]
    rows = [uneven(left) for left in rest if left]
    if len(rows) < 2:
        return 1.0 / 3.0
    return float(np.var(rows, axis=0).mean()) * (len(rows) - 1)
