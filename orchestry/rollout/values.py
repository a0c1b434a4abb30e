"""Estimates of a tree's state values, with their errors.

V(s) is the expected return when the team continues from s. A state's samples estimate it in two
ways, combined by their precision: the mean over its children's own estimates, and the mean return
of replays from it. Errors follow from one variance per depth, pooled over all siblings of that
depth: how much V differs between the children of one state.

After pruning only survivors have leaves, so their mean is too high. But the first values, by which
the search pruned, are known for all siblings; given these, it is chance which of them have leaves.
So a pruned child gets the survivors' value, minus half of the difference of the first values, and a
child with few returns is shrunk towards that (empirical Bayes). Children without a return count in
the error. A state in the middle of a chain has one child, through whose return the chain was chosen
for credit as the best or the worst: if it has replays, they alone tell its value.

A beam's states keep the child that was chosen: leaving it out takes away that bias too, but adds
more noise than it is worth (`benchmarks.quality.credit` then finds credits that are further off,
and blames the wrong agent more often).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from orchestry.core.types import Group, NodeId, Tree

PRIOR_VARIANCE = 1.0 / 12.0
"""Prior variance of a return: that of a uniform number in [0, 1]."""
SLOPE = 0.5
"""The share of a difference in first values that remains in V."""
PRIOR_FREEDOM = 1.0
"""Degrees of freedom of the prior."""


@dataclass(frozen=True, slots=True)
class StateValue:
    """An estimate of V, its variance, and the weight of each child's own estimate in it."""

    mean: float
    variance: float
    weights: Mapping[NodeId, float] = field(default_factory=dict)


class StateValues:
    """Estimates for all states that have a return, from a tree and from replays.

    `returns`: replays' returns by state. `exact`: means by state that are known without replays.
    """

    def __init__(
        self,
        tree: Tree[Any],
        returns: Mapping[NodeId, Sequence[float]],
        exact: Mapping[NodeId, float] | None = None,
    ) -> None:
        self._tree = tree
        self._returns = {node: list(found) for node, found in returns.items()}
        self._exact = exact or {}
        self._groups = {group.parent: group for group in tree.groups}
        self._depth = max((leaf.id.stage for leaf in tree.leaves), default=0)
        self._memo: dict[NodeId, StateValue | None] = {}
        self.freedom = PRIOR_FREEDOM
        """Degrees of freedom of one depth's variance: the mean over depths."""
        self._between: dict[int, float] = {}
        self._single: dict[int, float] = {}
        levels = {group.parent.stage for group in tree.groups}
        for level in sorted(levels, reverse=True):
            self.freedom += self._pool(level) / len(levels)

    def group(self, node: NodeId) -> Group:
        """The samples that were drawn in a state."""
        return self._groups[node]

    def known(self, node: NodeId) -> StateValue:
        """The estimate of a state that has a return below it."""
        estimate = self.estimate(node)
        if estimate is None:
            raise KeyError(node)
        return estimate

    def estimate(self, node: NodeId) -> StateValue | None:
        """The estimate of a state; None if no play from there finished."""
        if node not in self._memo:
            self._memo[node] = self._estimate(node)
        return self._memo[node]

    def ended(self, node: NodeId) -> bool:
        """Whether the episode ended there."""
        return self._tree.nodes[node].leaf

    def _estimate(self, node: NodeId) -> StateValue | None:
        if self.ended(node):
            return StateValue(self._return(node), 0.0)
        below, played = self._below(node), self._returns.get(node)
        if not played or (below and node in self._exact):
            return below
        if below and self._alone(node):
            below = None
        alone = StateValue(
            fmean(played), self._single.get(node.stage, PRIOR_VARIANCE) / len(played)
        )
        if below is None:
            return alone
        share = alone.variance / (alone.variance + below.variance)
        return StateValue(
            share * below.mean + (1.0 - share) * alone.mean,
            share * below.variance,
            {child: share * weight for child, weight in below.weights.items()},
        )

    def _alone(self, node: NodeId) -> bool:
        """Whether it is in the middle of a chain."""
        return node.stage > 0 and len(self._groups[node].children) == 1

    def _return(self, leaf: NodeId) -> float:
        node = self._tree.nodes[leaf]
        return node.total if node.trajectory.score else node.number

    def _below(self, node: NodeId) -> StateValue | None:
        """The mean over children.

        A child without a return is estimated from its first value and from the siblings that
        continued; one with few returns is shrunk towards that.
        """
        if node not in self._groups:
            return None
        children = self._groups[node].children
        found = {child: estimate for child in children if (estimate := self.estimate(child))}
        firm = [child for child in children if self._firm(child)] or [
            child for child in children if child in found
        ]
        if not firm:
            return None
        level, anchor = node.stage, fmean(found[child].mean for child in firm)
        first = fmean(self._first_value(child) for child in firm)
        mean, weights = 0.0, dict.fromkeys(found, 0.0)
        for child in children:
            own = found.get(child)
            trust = 1.0 if child in firm else self._trust(own, level)
            guess = anchor + SLOPE * (self._first_value(child) - first)
            mean += (trust * own.mean if own else 0.0) + (1.0 - trust) * guess
            if own:
                weights[child] += trust / len(children)
        borrowed = 1.0 - sum(weights.values())
        for child in firm:
            weights[child] += borrowed / len(firm)
        noise = sum(weight**2 * found[child].variance for child, weight in weights.items())
        drawn = self._between[level] / (len(children) * (1.0 - borrowed))
        return StateValue(
            self._exact.get(node, min(1.0, max(0.0, mean / len(children)))),
            drawn + noise + borrowed**2 * self._between[level],
            weights,
        )

    def _firm(self, node: NodeId) -> bool:
        """Whether the search itself continued from there to an end."""
        return self.ended(node) or bool((estimate := self.estimate(node)) and estimate.weights)

    def _trust(self, own: StateValue | None, level: int) -> float:
        """The weight of a child's own returns against the estimate from its siblings."""
        return self._between[level] / (self._between[level] + own.variance) if own else 0.0

    def _first_value(self, node: NodeId) -> float:
        """The first value, by which the search pruned: the judge's value, or the task's score so
        far."""
        judged = self._tree.nodes[node].judged
        return judged.number if judged else self._return(node)

    def _pool(self, level: int) -> int:
        """Sets the variances of one depth from those of greater depths; returns their degrees of
        freedom."""
        between, freedom = 0.0, 0
        after = self._single.get(level + 1, 0.0)
        for group in self._tree.groups:
            if group.parent.stage != level:
                continue
            found = [estimate for child in group.children if (estimate := self.estimate(child))]
            noise = sum(estimate.variance for estimate in found) * (1.0 - 1.0 / max(1, len(found)))
            between += _squares([estimate.mean for estimate in found]) - noise
            freedom += max(0, len(found) - 1)
            played = self._returns.get(group.parent, ())
            excess = _squares(played) - max(0, len(played) - 1) * after
            between, freedom = between + excess, freedom + max(0, len(played) - 1)
        prior = PRIOR_FREEDOM * PRIOR_VARIANCE / (1 + self._depth)
        self._between[level] = (max(0.0, between) + prior) / (freedom + PRIOR_FREEDOM)
        self._single[level] = self._between[level] + after
        return freedom


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values) if values else 0.0
    return sum((value - mean) ** 2 for value in values)
