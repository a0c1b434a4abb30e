"""Group sizes by problem (`learn.group_size: auto`): more samples where returns differ.

Sizes follow from earlier visits of the problems alone, never from the samples of the group itself,
so that the gradient stays unbiased (see batch.py). Choosing a group's size by its own first samples
would not: whether it goes on then depends on what they earned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from statistics import fmean

from orchestry.core.types import Problem
from orchestry.store.records import EpisodeRecord

LEAST, MOST = 2, 64
"""Of a group: one sample has nothing to be compared with."""
PRIOR = 1.0
"""Degrees of freedom that the variance over all problems counts as."""
FADING = 0.5
"""What a visit counts, as a share of the problem's next one: the team has changed since."""


def group_sizes(
    problems: Sequence[Problem], before: Iterable[EpisodeRecord], mean: int
) -> list[int]:
    """The samples of each problem of a block, `mean` on average, by the episodes before it."""
    return allocate(variances(problems, before), mean * len(problems))


def allocate(variances_P: Sequence[float], total: int) -> list[int]:
    """The sizes from LEAST to MOST that add up to `total` and give the gradient the least variance.

    With the others' mean as its baseline, a group of n has variance v / (n - 1), if v is that of a
    return. One sample more saves v / (n (n - 1)); each goes where it saves most.
    """
    sizes = [LEAST] * len(variances_P)
    queue = [(-v / (LEAST * (LEAST - 1)), place) for place, v in enumerate(variances_P)]
    heapify(queue)
    for _ in range(total - LEAST * len(sizes)):
        place = queue[0][1]
        sizes[place] += 1
        n = sizes[place]
        saved = variances_P[place] / (n * (n - 1)) if n < MOST else -1.0
        heapreplace(queue, (-saved, place))
    return sizes


def variances(problems: Sequence[Problem], before: Iterable[EpisodeRecord]) -> list[float]:
    """Of each problem's reward: by its visits, shrunk to the mean over all problems; equal ones
    while no rewards differed."""
    visits = defaultdict[str, list[tuple[float, int]]](list)
    for record in sorted(before, key=lambda one: one.episode):
        rewards = [leaf.score.total for leaf in record.leaves()]
        if len(rewards) > 1:
            mean = fmean(rewards)
            squares = sum((reward - mean) ** 2 for reward in rewards)
            visits[record.problem].append((squares, len(rewards) - 1))
    last = [each[-1] for each in visits.values()]
    usual = sum(squares for squares, _ in last) / max(1, sum(free for _, free in last))
    return [_variance(visits.get(problem.id, []), usual) if usual else 1.0 for problem in problems]


def _variance(visits: Sequence[tuple[float, int]], usual: float) -> float:
    total, count, weight = usual * PRIOR, PRIOR, 1.0
    for squares, free in reversed(visits):
        total, count, weight = total + weight * squares, count + weight * free, weight * FADING
    return total / count
