"""Credit by counterfactual replay: plays on from stored states of a searched tree.

Replay number j of every state uses the same seeds (common random numbers), so that compared
siblings have the same luck. Seed and purpose differ from the search's requests, so the samples are
new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from math import floor
from typing import Any

from orchestry.core.config import CreditConfig
from orchestry.core.seeds import derive
from orchestry.core.types import Group, NodeId, StateT, Trajectory, Tree, Turn
from orchestry.rollout.credit import Mixes, allocate, credits
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.shapley import Mix, draws
from orchestry.rollout.tree import best_leaf, worst_leaf
from orchestry.store.records import CreditRecord


@dataclass(frozen=True, slots=True)
class Credited:
    """Credits per agent for the best leaf, then for the worst, and their cost in calls."""

    records: tuple[CreditRecord, ...]
    calls: int


async def give_credit(
    rollout: Rollout[StateT], tree: Tree[StateT], config: CreditConfig
) -> Credited:
    """Credits the agents for the best leaf and for the worst, if that is another.

    Makes at most `config.share` times the episode's calls (None: no calls), for the purpose
    `credit`. Deterministic, given the answers.
    """
    best, worst = best_leaf(tree).id, worst_leaf(tree).id
    leaves = [best] if best == worst else [best, worst]
    agents = [spec.role for spec in rollout.task.agents]
    replays = Replays(replace(rollout, purpose="credit", judge=None), tree)
    mixes: Mixes = {}
    if config.method == "replay":
        most = floor((config.share or 0.0) * len(tree.answers))
        await replays.play(allocate(tree, leaves, most), most)
        mixes = await replays.mix(leaves)
    records = credits(tree, leaves, agents, replays.returns, config.method, mixes)
    return Credited(records, replays.calls)


@dataclass(slots=True)
class Replays:
    """Replays from the states of one tree, and their returns."""

    rollout: Rollout[Any]
    tree: Tree[Any]
    returns: dict[NodeId, list[float]] = field(default_factory=dict)
    calls: int = 0
    _begun: Counter[NodeId] = field(default_factory=Counter)
    _scores_below: dict[NodeId, dict[Any, float]] = field(default_factory=dict)
    """Scores of the states after joint actions, by the state before."""
    _first_moves: dict[NodeId, list[tuple[Turn, ...]]] = field(default_factory=dict)

    async def play(self, states: Sequence[NodeId], calls: int) -> None:
        """Plays one replay per entry of `states`, together; those beyond `calls` give no return."""
        starts, seeds = list[Trajectory[Any]](), list[int]()
        for state in states:
            node, number = self.tree.nodes[state].trajectory, self._begun[state]
            self._begun[state] += 1
            starts.append(replace(node, id=state.child(f"r{number}")))
            seeds.append(derive(node.seed, "replay", number))
        ends = await self.rollout.go_on(starts, seeds, calls)
        self.calls += sum(
            len(turn.completion.answers)
            for start, end in zip(starts, ends, strict=True)
            for turn in end.turns[len(start.turns) :]
        )
        whole = [
            (state, end)
            for state, end in zip(states, ends, strict=True)
            if not self.rollout.actors(end)
        ]
        scores = await self.rollout.rate([end for _, end in whole])
        for (state, end), score in zip(whole, scores, strict=True):
            self.returns.setdefault(state, []).append(score.total)
            self._first_moves.setdefault(state, []).append(end.turns)

    async def mix(self, leaves: Sequence[NodeId]) -> Mixes:
        """Scores joint actions on the paths to the leaves, mixed from all existing samples.

        No model is called; the task steps and evaluates.
        """
        groups = {group.parent: group for group in self.tree.groups}
        mixes: dict[NodeId, list[Mix]] = {}
        for state, child in _moves(leaves):
            group = groups[state]
            if len(group.agents) > 1:
                mixes[child] = await self._mix(group, child)
        return mixes

    async def _mix(self, group: Group, child: NodeId) -> list[Mix]:
        """One joint action's coalitions, against draws of the samples of its state."""
        pools, agents = self._pools(group), range(len(group.agents))
        node, own = self.tree.nodes[group.parent].trajectory, self._move(group, child)
        drawn = draws(len(pools), len(agents), derive(node.seed, "mix", node.id))
        wanted = [
            tuple(own[i] if kept >> i & 1 else pools[draw[i]][i] for i in agents)
            for draw in drawn
            for kept in range(1 << len(agents))
        ]
        totals = iter(await self._scores(node, group, wanted))
        return [Mix(draw, tuple(islice(totals, 1 << len(agents)))) for draw in drawn]

    async def _scores(
        self, node: Trajectory[Any], group: Group, wanted: Sequence[tuple[Turn, ...]]
    ) -> list[float]:
        """The task's score of each joint action; equal actions and equal states are computed
        once."""
        if node.id not in self._scores_below:
            siblings = [sibling.trajectory for sibling in self.tree.siblings(group)]
            self._scores_below[node.id] = {
                one.state: one.score.total for one in siblings if one.score and not one.failed
            }
        known = self._scores_below[node.id]
        said = [tuple(turn.completion.action for turn in turns) for turns in wanted]
        distinct = dict(zip(said, wanted, strict=True))
        made = {texts: self.rollout.child(node, 0, turns) for texts, turns in distinct.items()}
        states = {texts: child.fault or child.state for texts, child in made.items()}
        fresh = {states[texts]: made[texts] for texts in made if states[texts] not in known}
        mixed = [
            replace(child, id=node.id.child(f"m{number}"))
            for number, child in enumerate(fresh.values(), start=len(known))
        ]
        rated = await self.rollout.rate(mixed)
        known |= {state: score.total for state, score in zip(fresh, rated, strict=True)}
        return [known[states[texts]] for texts in said]

    def _pools(self, group: Group) -> list[tuple[Turn, ...]]:
        """The joint actions sampled in a state: the search's, then those of the replays."""
        children, agents = group.children, len(group.agents)
        if self.rollout.schedule.joint == "cross":  # its rows (j, j, ...) hold every sample once
            samples = round(len(children) ** (1 / agents))
            children = children[:: sum(samples**i for i in range(agents))]
        before = len(self.tree.nodes[group.parent].trajectory.turns)
        played = self._first_moves.get(group.parent, [])
        return [
            *(self._move(group, child) for child in children),
            *(turns[before : before + agents] for turns in played),
        ]

    def _move(self, group: Group, child: NodeId) -> tuple[Turn, ...]:
        return self.tree.nodes[child].trajectory.turns[-len(group.agents) :]


def _moves(leaves: Sequence[NodeId]) -> dict[tuple[NodeId, NodeId], None]:
    """Each stage on the paths to the leaves, once: the state, and the next one."""
    return dict.fromkeys(step for leaf in leaves for step in pairwise(leaf.path))
