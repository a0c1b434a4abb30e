"""A finished tree as the record that goes to disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from orchestry.core.types import Group, Score, Trajectory, Tree
from orchestry.rollout.beam import advantages
from orchestry.rollout.values import group_values
from orchestry.store.records import CreditRecord, EpisodeRecord, GroupRecord, NodeRecord


def episode_record(
    tree: Tree[Any],
    episode: int,
    credits: Sequence[CreditRecord] = (),
    credit_calls: int = 0,
) -> EpisodeRecord:
    """Flattens one episode, with the credits that its agents were given and their calls."""
    root = tree.trajectories["0"]
    best = best_leaf(tree) if tree.leaves else root
    return EpisodeRecord(
        episode=episode,
        problem=root.problem.id,
        split=root.problem.split,
        seed=root.seed,
        best=best.id,
        reward=_total(best),
        mean_leaf_reward=tree.values[root.id].number if tree.leaves else 0.0,
        calls=len(tree.answers),
        usd=sum(answer.usd for answer in tree.answers),
        input_tokens=sum(answer.input_tokens for answer in tree.answers),
        output_tokens=sum(answer.output_tokens for answer in tree.answers),
        nodes=tuple(_node(tree, node) for node in tree.trajectories.values()),
        groups=tuple(_group(tree, group) for group in tree.groups),
        failed_calls=len(tree.failures),
        failed="" if tree.leaves else (tree.failures or ["no trajectory ended"])[0],
        judgements=dict(sorted(Counter(tree.outcomes).items())),
        credits=tuple(credits),
        credit_calls=credit_calls,
    )


def best_leaf(tree: Tree[Any]) -> Trajectory[Any]:
    """The first of the leaves with the highest value, and among these with the highest score."""
    leaves = [tree.trajectories[id] for id in tree.leaves]
    return max(leaves, key=lambda leaf: (_own_value(tree, leaf), _total(leaf)))


def worst_leaf(tree: Tree[Any]) -> Trajectory[Any]:
    """The first of the leaves with the lowest value, and among these with the lowest score."""
    leaves = [tree.trajectories[id] for id in tree.leaves]
    return min(leaves, key=lambda leaf: (_own_value(tree, leaf), _total(leaf)))


def _own_value(tree: Tree[Any], leaf: Trajectory[Any]) -> float:
    return tree.values[leaf.id].number if leaf.id in tree.values else _total(leaf)


def _total(node: Trajectory[Any]) -> float:
    return node.score.total if node.score else 0.0


def _node(tree: Tree[Any], node: Trajectory[Any]) -> NodeRecord:
    value, score = tree.values.get(node.id), node.score or Score(parts=())
    before = len(tree.trajectories[node.parent].turns) if node.parent else 0
    return NodeRecord(
        id=node.id,
        parent=node.parent,
        turns=node.turns[before:],
        value=value.number if value else None,
        source=value.source if value else None,
        survived=node.id in tree.survivors,
        judged=tree.opinions.get(node.id),
        judge_feedback=tree.judged[node.id].feedback if node.id in tree.judged else "",
        parts=score.parts,
        feedback=score.feedback,
        tags=score.tags,
    )


def _group(tree: Tree[Any], group: Group) -> GroupRecord:
    source, values = group_values(tree, group)
    return GroupRecord(
        parent=group.parent,
        agents=group.agents,
        children=group.children,
        source=source,
        values=values,
        advantages=advantages(values),
    )
