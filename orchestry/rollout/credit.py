"""Each agent's credit for a trajectory's return.

An agent's credit is the sum over its moves of V(state after) - V(state before), where V(s) is the
expected return when the team continues from s. Over a trajectory the credits add up to its return
minus V(root). For agents that act in order they are asymmetric Shapley values in the order of play
(Frye, Rowat & Feige 2020), and each term is the team's advantage, with the mean over the agent's
own other actions as counterfactual baseline (COMA, Foerster et al. 2018). Agents that act
simultaneously share their stage's advantage by their Shapley values (rollout/shapley.py), or evenly
if none were sampled.

Alternatives: `siblings` is a move's value minus its siblings' mean, from the tree alone (agents
that act simultaneously share it evenly); these credits have no fixed sum. `equal` gives every agent
that acted the same part of the return minus V(root).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any, Literal

from orchestry.core.intervals import student_95
from orchestry.core.types import ROOT, Group, NodeId, Tree
from orchestry.rollout.shapley import Mix, jackknife, mean_scores, shapley, uneven
from orchestry.rollout.tree import advantages, group_values
from orchestry.rollout.values import PRIOR_FREEDOM, PRIOR_VARIANCE, StateValues
from orchestry.store.records import CreditRecord, EpisodeRecord

Method = Literal["replay", "siblings", "equal"]
Returns = Mapping[NodeId, Sequence[float]]
"""Returns of replays from a state, by the state's id."""
Mixes = Mapping[NodeId, Sequence[Mix]]
"""Mixed joint actions, by the id of the state after the unmixed one."""
UNIFORM = 1.0 / 12.0
"""Variance of an unknown share in [0, 1] (uniform)."""
PLAYED = 2
"""When replays are allocated, a state that the search continued from counts as having had this
many."""


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
    """One record per agent, in the order of `agents`, for each trajectory that ends at a leaf; ()
    where no move has another one, or a replay, to be compared with (`equal`: no rollout has one).

    The interval is Student's: variances are pooled over the siblings of a depth with a prior
    (values.py), their degrees of freedom taken together; what is estimated from one sample enters
    two states' values, so their errors are correlated as their weights say. It covers sampling
    error only, not a method's bias (`equal`), and is clipped to [-1, 1].
    """
    mixes = mixes or {} if method == "replay" else {}
    returns = returns if method == "replay" else {}
    drawn = [group for group in tree.groups if group.agents or method == "equal"]
    if not returns and all(len(group.children) < 2 for group in drawn):
        return ()
    estimates = StateValues(tree, returns, mixed_values(tree, mixes))
    found = list[CreditRecord]()
    for leaf in leaves:
        sums, freedom = _sums(tree, estimates, leaf, agents, method, mixes)
        width = student_95(freedom)
        found += [_record(agent, leaf, sums[agent], width) for agent in agents]
    return tuple(found)


def _sums(
    tree: Tree[Any],
    estimates: StateValues,
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
    """The states to replay from, one entry per replay, for at most `calls` calls.

    These are the states of the trajectories that end at `leaves`, and their siblings. Each replay
    goes to the state with the fewest calls so far (the latest, if tied); a state that the search
    continued from counts as played PLAYED times. So pruned siblings come first.
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
    """Calls of one replay from each depth: the largest number of agents in each stage."""
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
    """The loss that each agent caused, in units of the return, as a mean over episodes.

    The loss is the best trajectory's return minus V(root), the team's expected return; the credits
    in the best leaf split it. An agent that usually fails has a high share, because its rare
    success makes the difference; an agent that rarely fails has a low one. The worst leaf is not
    used: a single failure of a good agent would weigh more there than the usual failure of a bad
    one. Reward that even the best trajectory lacks is attributed to no agent. {} where no credit
    was measured.
    """
    total: dict[str, float] = {}
    for record in records:
        for credit in record.credits:
            if credit.leaf == record.best:
                total[credit.agent] = total.get(credit.agent, 0.0) + credit.credit
    return {agent: value / len(records) for agent, value in total.items()}


def _record(agent: str, leaf: NodeId, found: Sum, width: float) -> CreditRecord:
    half = width * sqrt(max(0.0, found.variance))
    low, high = max(-1.0, found.credit - half), min(1.0, found.credit + half)
    if not isfinite(half):
        low, high = -1.0, 1.0
    return CreditRecord(agent=agent, leaf=str(leaf), credit=found.credit, low=low, high=high)


def _shares(estimates: StateValues, leaf: NodeId, agent: str) -> list[float]:
    """Each agent's equal share in every stage on the path to a leaf."""
    groups = [estimates.group(state) for state in leaf.path[:-1]]
    return [(agent in group.agents) / max(1, len(group.agents)) for group in groups]


def _telescoped(estimates: StateValues, leaf: NodeId, agents: Sequence[str]) -> dict[str, Sum]:
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
    sums: dict[str, Sum], tree: Tree[Any], estimates: StateValues, leaf: NodeId, mixes: Mixes
) -> None:
    """Replaces equal shares of agents that acted simultaneously by their Shapley values.

    Before the last stage the game uses the task's scores of unfinished work. The rest of the
    stage's advantage has unknown shares, which the variance includes.
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
            noise, extra = PRIOR_VARIANCE, (0.0,) * len(group.agents)
        for agent, more in zip(group.agents, extra, strict=True):
            old = sums[agent]
            variance = old.variance + noise + UNIFORM * unknown**2
            sums[agent] = Sum(old.credit + more, variance)


def _equal(estimates: StateValues, leaf: NodeId, agents: Sequence[str]) -> dict[str, Sum]:
    acted = {agent for agent in agents if any(_shares(estimates, leaf, agent))}
    root, end = estimates.known(ROOT), estimates.known(leaf)
    part = Sum((end.mean - root.mean) / len(acted), root.variance / len(acted) ** 2)
    return {agent: part if agent in acted else Sum(0.0, 0.0) for agent in agents}


def _siblings(
    tree: Tree[Any], estimates: StateValues, leaf: NodeId, agents: Sequence[str]
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
    """A child's value minus the siblings' mean, and the mean's variance."""
    found = advantages(group_values(tree, group)[1])
    prior = PRIOR_FREEDOM * PRIOR_VARIANCE
    pooled = (sum(x**2 for x in found) + prior) / (len(found) - 1 + PRIOR_FREEDOM)
    return found[group.children.index(child)], pooled / len(found)
