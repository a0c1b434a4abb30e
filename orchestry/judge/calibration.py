"""Chooses trajectories for a person to rate, measures how far the judge agrees, and corrects it.
Pure.

The correction is a line, by ridge regression towards the identity; with few pairs a richer map,
such as isotonic regression, would fit their noise. The prior counts as PRIOR pairs on which judge
and person agree, with the judge's numbers spread evenly over [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from orchestry.core.errors import ConfigError
from orchestry.core.seeds import derive
from orchestry.judge.ranking import ranks, sign, spearman
from orchestry.store.journal import Rated
from orchestry.store.records import EpisodeRecord, NodeRecord

TOP_RATING = 10
"""The best rating that a person can give; the worst is 0."""
PRIOR = 10.0
"""The prior's weight, in pairs on which judge and person agree."""
_SPREAD = 1 / 12
"""Variance of a uniform number in [0, 1]."""
Pairs = Sequence[tuple[float, float]]
"""(a number, the person's rating), both in [0, 1]."""
Ratings = Mapping[tuple[int, str], float]
"""People's ratings in [0, 1] by episode and node, as journal.ratings gives them."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Maps a judge's number in [0, 1] to a person's expected rating: a line, clipped to [0, 1]."""

    slope: float = 1.0
    """At least 0, so that no order is reversed."""
    intercept: float = 0.0
    pairs: int = 0
    """Number of pairs in the fit."""

    def __call__(self, number: float) -> float:
        return min(1.0, max(0.0, self.intercept + self.slope * number))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a person's ratings with other numbers; None where there are too few."""

    count: int
    """Rated nodes that have both numbers."""
    pairs: int
    """Pairs of these nodes: count (count - 1) / 2."""
    alike: float | None
    """Share of the pairs in the same order; a tie on only one side counts half."""
    difference: float | None
    """Mean absolute difference, in [0, 1]."""
    spearman: float | None
    """Rank correlation; None for fewer than 3 nodes, or if one side is constant."""


def calibration(pairs: Pairs) -> Calibration:
    """The map from the judge's numbers to the person's ratings; the identity for no pairs.

    Minimises the squared errors over the pairs and the prior's, with a slope of at least 0. On the
    pairs themselves its squared error is never above the judge's own.
    """
    import numpy as np

    numbers, ratings = np.reshape(pairs, (-1, 2)).T
    x, error = numbers - 0.5, ratings - numbers
    weight = len(pairs) + PRIOR
    covariance = x @ error - x.sum() * error.sum() / weight
    tilt = max(-1.0, covariance / (x @ x + PRIOR * _SPREAD - x.sum() ** 2 / weight))
    shift = (error - tilt * x).sum() / weight  # the best for this slope, also at the bound
    return Calibration(1.0 + float(tilt), float(shift - 0.5 * tilt), len(pairs))


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
    return [(task_reward(node), rating) for _, node, rating in _rated(records, ratings)]


def judged(record: EpisodeRecord, node: NodeRecord) -> float | None:
    """The judge's own number, in [0, 1], for the last rated move on the path to the node.

    By default it rates no leaves, but its number for a move predicts the outcome. None if it rated
    no move on the path.
    """
    said = [move.judged for move in record.path(node.id) if move.judged is not None]
    return said[-1] if said else None


def task_reward(node: NodeRecord) -> float:
    """The task's score of the work at that node, in [0, 1]; NaN for the root, which has none."""
    return node.score.total


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


# --- what a person is asked to rate ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """A trajectory to rate: an episode, and the node that the trajectory ends in."""

    record: EpisodeRecord
    node: NodeRecord
    why: Literal["best", "worst", "asked for"] = "asked for"

    @property
    def reward(self) -> float:
        """The task's score of the work at the node."""
        return task_reward(self.node)

    @property
    def key(self) -> tuple[int, str]:
        """Episode and node: what ratings go by."""
        return self.record.episode, self.node.id


def extremes(records: Sequence[EpisodeRecord], best: int, worst: int) -> list[Shown]:
    """The leaves with the highest and the lowest rewards, at most one of each per problem.

    If equal, the first played. They are shuffled with a fixed seed, so that their places reveal
    nothing.
    """
    leaves = [Shown(record, node) for record in records for node in record.leaves()]
    top = _one_per_problem(sorted(leaves, key=lambda leaf: -leaf.reward))[:best]
    taken = {leaf.key for leaf in top}
    others = [leaf for leaf in leaves if leaf.key not in taken]
    bottom = _one_per_problem(sorted(others, key=lambda leaf: leaf.reward))[:worst]
    found = [Shown(leaf.record, leaf.node, "best") for leaf in top]
    found += [Shown(leaf.record, leaf.node, "worst") for leaf in bottom]
    return sorted(found, key=lambda leaf: derive("rate", leaf.record.seed, *leaf.key))


def find(records: Sequence[EpisodeRecord], episode: int, node: str | None) -> Shown:
    """The trajectory to a node, or to the episode's best leaf; raises ConfigError if there is
    none."""
    record = next((record for record in records if record.episode == episode), None)
    if record is None:
        known = ", ".join(str(record.episode) for record in records[:20])
        more = ", ..." if len(records) > 20 else ""
        raise ConfigError(f"there is no finished episode {episode}: choose one of {known}{more}")
    moves = {move.id: move for move in record.nodes if move.parent is not None}
    if node is not None and node not in moves:
        leaves = ", ".join(leaf.id for leaf in record.leaves())
        raise ConfigError(
            f"episode {episode} has no move that leads to node '{node}': choose one of its leaves "
            f"({leaves}), or a node on the way to one"
        )
    return Shown(record, moves[node or record.best])


def read_rating(text: str) -> float:
    """Converts a typed rating from 0 to TOP_RATING into [0, 1]; raises ConfigError, in one line."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= TOP_RATING:  # also refuses NaN
        raise ConfigError(
            f"{text!r} is no rating: give a number from 0 (useless) to {TOP_RATING} (could not be "
            "better)"
        )
    return number / TOP_RATING


def rated(shown: Shown, rating: float, comment: str, at: float, *, override: bool = False) -> Rated:
    """The journal's event; `rating` in [0, 1], `at` in Unix seconds."""
    return Rated(
        episode=shown.record.episode,
        node=shown.node.id,
        rating=rating,
        comment=" ".join(comment.encode("utf-8", "replace").decode().split()),
        override=override,
        answers=shown.record.answers(shown.node.id),
        at=at,
    )


def _one_per_problem(ranked: Sequence[Shown]) -> list[Shown]:
    first = dict[str, Shown]()
    for leaf in ranked:
        first.setdefault(leaf.record.problem, leaf)
    return list(first.values())
