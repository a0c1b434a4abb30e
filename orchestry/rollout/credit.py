"""How much of a trajectory's return each agent is to be credited with.

The credit of an agent is the sum over its moves of V(state after) - V(state before), with V(s) the
expected return when the team goes on from s. Over a trajectory these add up to its return less
V(root); for agents that act in order they are asymmetric Shapley values in the order of play (Frye,
Rowat & Feige 2020), and each term is the team's advantage, with the mean over the agent's own other
actions as counterfactual baseline (COMA, Foerster et al. 2018). Agents that act at once share
their stage's advantage by their Shapley values (rollout/shapley.py); where none were sampled,
evenly.

Named alternatives: `siblings` is a move's value less its siblings' mean, from what the tree holds
(agents that act at once share it evenly); it adds up to no total. `equal` gives every agent that
acted the same part of the return less V(root).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import isfinite, pi, sqrt, tan
from typing import Any, Literal

from orchestry.core.types import ROOT, Group, NodeId, Tree
from orchestry.rollout.shapley import Mix, jackknife, mean_scores, shapley, uneven
from orchestry.rollout.tree import advantages, group_values
from orchestry.rollout.values import PRIOR, PRIOR_FREEDOM, Estimates
from orchestry.store.records import CreditRecord, EpisodeRecord

Method = Literal["replay", "siblings", "equal"]
Returns = Mapping[NodeId, Sequence[float]]
"""Returns of plays that went on from a state, by its id."""
Mixes = Mapping[NodeId, Sequence[Mix]]
"""Mixed joint actions, by the id of the state that the unmixed one led to."""
_SPAN, _STEPS = 10.0, 10_001
"""Of the grid for Student's t: up to the angle beyond which no mass is left."""
UNIFORM = 1.0 / 12.0
"""Variance of a share of which nothing is known but that it lies in [0, 1]."""
PLAYED = 2
"""How many replays the search's own plays beyond a state count as, when replays are given out."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One agent's credit and its variance."""

    credit: float
    variance: float


def credits(
    tree: Tree[Any],
    leaves: Sequence[NodeId],
    agents: Sequence[str],
    returns: Returns,
    method: Method = "replay",
    mixes: Mixes | None = None,
) -> tuple[CreditRecord, ...]:
    """One record per agent, in the order of `agents`, for each trajectory that ends at a leaf.

    The interval is Student's: variances are pooled over the siblings of a depth with a prior
    (values.py), their degrees of freedom taken together; what is estimated from one sample
    enters two states' values, so their errors are correlated as their weights say. It covers
    sampling error only, not that of a wrong method (`equal`), and is cut at [-1, 1].
    """
    mixes = mixes or {} if method == "replay" else {}
    estimates = Estimates(tree, returns if method == "replay" else {}, mixed_values(tree, mixes))
    found = list[CreditRecord]()
    for leaf in leaves:
        sums, freedom = _sums(tree, estimates, leaf, agents, method, mixes)
        width = student_95(freedom)
        found += [_record(agent, leaf, sums[agent], width) for agent in agents]
    return tuple(found)


def _sums(
    tree: Tree[Any],
    estimates: Estimates,
    leaf: NodeId,
    agents: Sequence[str],
    method: Method,
    mixes: Mixes,
) -> tuple[dict[str, Sum], float]:
    """Credits by agent for one trajectory, and the degrees of freedom of their variances."""
    if method == "siblings":
        return _siblings(tree, estimates, leaf, agents)
    if method == "equal":
        return _equal(estimates, leaf, agents), estimates.freedom
    sums = _telescoped(estimates, leaf, agents)
    _add_uneven(sums, tree, estimates, leaf, mixes)
    return sums, estimates.freedom


def allocate(tree: Tree[Any], leaves: Sequence[NodeId], calls: int) -> tuple[NodeId, ...]:
    """The states to play on from, an entry a play, for at most `calls` calls.

    These are the states of the trajectories that end at `leaves`, and their siblings. Each play
    goes to the state on which fewest calls were spent, where one that the search went on
    from counts as played PLAYED times; of equals to the latest. So pruned siblings come first.
    """
    groups, costs = {group.parent: group for group in tree.groups}, remaining_calls(tree)
    before = [state for leaf in leaves for state in leaf.path[:-1]]
    near = [node for state in before for node in (state, *groups[state].children)]
    plays = {node: PLAYED * (node in groups) for node in near if not tree.nodes[node].leaf}
    chosen = list[NodeId]()
    while fit := [state for state in plays if costs[state.stage] <= calls]:
        state = min(fit, key=lambda s: ((plays[s] + 1) * costs[s.stage], -s.stage))
        plays[state] += 1
        calls -= costs[state.stage]
        chosen.append(state)
    return tuple(chosen)


def remaining_calls(tree: Tree[Any]) -> list[int]:
    """Calls of one play from a state of each depth: the most agents that acted in each stage."""
    stages: defaultdict[int, int] = defaultdict(int)
    for group in tree.groups:
        level = group.parent.stage
        stages[level] = max(stages[level], len(group.agents))
    return [sum(stages[level] for level in range(d, len(stages))) for d in range(len(stages) + 1)]


def mixed_values(tree: Tree[Any], mixes: Mixes) -> dict[NodeId, float]:
    """By state: the mean score of its mixed joint actions, for those that ended the episode."""
    return {
        state: mean_scores(found)[0]
        for child, found in mixes.items()
        if found and tree.nodes[child].leaf and (state := child.parent) is not None
    }


def blame(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """How much of the loss each agent caused, in units of the return, as a mean over episodes.

    The loss is what the best trajectory found has and the team's ordinary play lacks, its return
    less V(root); the credits in the best leaf split it. An agent that mostly fails is high, since
    its rare success makes the difference; one that fails rarely is low, since its success is the
    rule. The worst leaf is left out on purpose: a good agent's one failure there weighs more than
    the failure that everyone expects. What even the best trajectory lacks is nobody's.
    """
    total: dict[str, float] = {}
    for record in records:
        for credit in record.credits:
            if credit.leaf == record.best:
                total[credit.agent] = total.get(credit.agent, 0.0) + credit.credit
    return {agent: value / len(records) for agent, value in total.items()}


@cache
def student_95(freedom: float) -> float:
    """Half a 95 % interval in standard errors, by Student's t; at least one degree of freedom.

    With t = sqrt(v) tan(a), the density of the angle is proportional to cos(a)^(v - 1).
    """
    import numpy as np

    angles = np.linspace(0.0, min(pi / 2, _SPAN / sqrt(freedom)), _STEPS)
    density = np.cos(angles) ** (freedom - 1.0)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return sqrt(freedom) * tan(float(np.interp(0.95, mass / mass[-1], angles)))


def _record(agent: str, leaf: NodeId, found: Sum, width: float) -> CreditRecord:
    half = width * sqrt(max(0.0, found.variance))
    low, high = max(-1.0, found.credit - half), min(1.0, found.credit + half)
    if not isfinite(half):
        low, high = -1.0, 1.0
    return CreditRecord(agent=agent, leaf=str(leaf), credit=found.credit, low=low, high=high)


def _shares(estimates: Estimates, leaf: NodeId, agent: str) -> list[float]:
    """An agent's even share in every stage on the way to a leaf."""
    groups = [estimates.group(state) for state in leaf.path[:-1]]
    return [(agent in group.agents) / len(group.agents) for group in groups]


def _telescoped(estimates: Estimates, leaf: NodeId, agents: Sequence[str]) -> dict[str, Sum]:
    """Differences of V, summed by agent; errors of V along a path are correlated."""
    states = leaf.path
    found = [estimates.known(state) for state in states]
    sums = {}
    for agent in agents:
        shares = [0.0, *_shares(estimates, leaf, agent), 0.0]
        factors = [before - after for before, after in pairwise(shares)]
        variance = 0.0
        for late in range(len(states)):
            covariance = found[late].variance
            variance += factors[late] ** 2 * covariance
            for early in range(late - 1, -1, -1):
                covariance *= found[early].weights.get(states[early + 1], 0.0)
                variance += 2.0 * factors[early] * factors[late] * covariance
        credit = sum(
            factor * estimate.mean for factor, estimate in zip(factors, found, strict=True)
        )
        sums[agent] = Sum(credit, variance)
    return sums


def _add_uneven(
    sums: dict[str, Sum], tree: Tree[Any], estimates: Estimates, leaf: NodeId, mixes: Mixes
) -> None:
    """Moves the even shares of agents that acted at once to their Shapley values.

    Before the last stage the game is that of the task's scores of unfinished work; of what the
    stage's advantage differs from that, nobody knows the shares, and the variance says so.
    """
    for before, after in pairwise(leaf.path):
        group = estimates.group(before)
        if len(group.agents) == 1:
            continue
        if found := mixes.get(after):
            unknown, noise = 0.0, jackknife(found)
            if not tree.nodes[after].leaf:
                explained = sum(shapley(mean_scores(found)))
                unknown = estimates.known(after).mean - estimates.known(before).mean - explained
            extra = uneven(found)
        else:
            unknown = estimates.known(after).mean - estimates.known(before).mean
            noise, extra = PRIOR, (0.0,) * len(group.agents)
        for agent, more in zip(group.agents, extra, strict=True):
            old = sums[agent]
            variance = old.variance + noise + UNIFORM * unknown**2
            sums[agent] = Sum(old.credit + more, variance)


def _equal(estimates: Estimates, leaf: NodeId, agents: Sequence[str]) -> dict[str, Sum]:
    acted = {agent for agent in agents if any(_shares(estimates, leaf, agent))}
    root, end = estimates.known(ROOT), estimates.known(leaf)
    part = Sum((end.mean - root.mean) / len(acted), root.variance / len(acted) ** 2)
    return {agent: part if agent in acted else Sum(0.0, 0.0) for agent in agents}


def _siblings(
    tree: Tree[Any], estimates: Estimates, leaf: NodeId, agents: Sequence[str]
) -> tuple[dict[str, Sum], float]:
    """Group-relative advantages, summed by agent, with their degrees of freedom."""
    sums, freedom = dict.fromkeys(agents, Sum(0.0, 0.0)), PRIOR_FREEDOM
    for state, after in pairwise(leaf.path):
        group = estimates.group(state)
        own, variance = _advantage(tree, group, after)
        freedom += len(group.children) - 1
        for agent in group.agents:
            old, parts = sums[agent], len(group.agents)
            sums[agent] = Sum(old.credit + own / parts, old.variance + variance / parts**2)
    return sums, freedom


def _advantage(tree: Tree[Any], group: Group, child: NodeId) -> tuple[float, float]:
    """A child's value less the siblings' mean, and that mean's variance."""
    found = advantages(group_values(tree, group)[1])
    prior = PRIOR_FREEDOM * PRIOR
    pooled = (sum(x**2 for x in found) + prior) / (len(found) - 1 + PRIOR_FREEDOM)
    return found[group.children.index(child)], pooled / len(found)
