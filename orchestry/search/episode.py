"""A finished tree as the record that goes to disk."""

from __future__ import annotations

from typing import Any

from orchestry.records import EpisodeRecord, GroupRecord, NodeRecord
from orchestry.search.beam import advantages
from orchestry.search.values import group_values
from orchestry.types import Group, Score, Trajectory, Tree


def episode_record(tree: Tree[Any], episode: int) -> EpisodeRecord:
    """Flattens one episode; the best leaf is the first of those with the highest score."""
    root = tree.trajectories["0"]
    leaves = [tree.trajectories[id] for id in tree.leaves]
    best = max(leaves, key=_total)
    return EpisodeRecord(
        episode=episode,
        problem=root.problem.id,
        split=root.problem.split,
        seed=root.seed,
        best=best.id,
        reward=_total(best),
        mean_leaf_reward=tree.values[root.id].number,
        calls=len(tree.answers),
        usd=sum(answer.usd for answer in tree.answers),
        input_tokens=sum(answer.input_tokens for answer in tree.answers),
        output_tokens=sum(answer.output_tokens for answer in tree.answers),
        nodes=tuple(_node(tree, node) for node in tree.trajectories.values()),
        groups=tuple(_group(tree, group) for group in tree.groups),
    )


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
