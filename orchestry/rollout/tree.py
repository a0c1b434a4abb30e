"""A finished tree as the record that goes to disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from orchestry.core.types import Group, Node, Score, StateT, Tree
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
    root, leaves = tree.root, tree.leaves
    start, best = root.trajectory, best_leaf(tree) if leaves else root
    return EpisodeRecord(
        episode=episode,
        problem=start.problem.id,
        split=start.problem.split,
        seed=start.seed,
        best=str(best.id),
        reward=best.total,
        mean_leaf_reward=root.number if leaves else 0.0,
        calls=len(tree.answers),
        usd=sum(answer.usd for answer in tree.answers),
        input_tokens=sum(answer.input_tokens for answer in tree.answers),
        output_tokens=sum(answer.output_tokens for answer in tree.answers),
        nodes=tuple(_node(tree, node) for node in tree.nodes.values()),
        groups=tuple(_group(tree, group) for group in tree.groups),
        failed_calls=len(tree.failures),
        failed="" if leaves else (tree.failures or ["no trajectory ended"])[0],
        judgements=dict(sorted(Counter(tree.outcomes).items())),
        credits=tuple(credits),
        credit_calls=credit_calls,
    )


def best_leaf(tree: Tree[StateT]) -> Node[StateT]:
    """The first of the leaves with the highest value, and among these with the highest score."""
    return max(tree.leaves, key=_worth)


def worst_leaf(tree: Tree[StateT]) -> Node[StateT]:
    """The first of the leaves with the lowest value, and among these with the lowest score."""
    return min(tree.leaves, key=_worth)


def _worth(leaf: Node[Any]) -> tuple[float, float]:
    return leaf.number if leaf.value else leaf.total, leaf.total


def _node(tree: Tree[Any], node: Node[Any]) -> NodeRecord:
    parent = node.id.parent
    before = 0 if parent is None else len(tree.nodes[parent].trajectory.turns)
    return NodeRecord(
        id=str(node.id),
        parent=None if parent is None else str(parent),
        turns=node.trajectory.turns[before:],
        value=node.value.number if node.value else None,
        source=node.value.source if node.value else None,
        survived=node.survived,
        judged=node.opinion,
        judge_feedback=node.judged.feedback if node.judged else "",
        score=node.trajectory.score or Score(parts=()),
    )


def _group(tree: Tree[Any], group: Group) -> GroupRecord:
    source, values = group_values(tree, group)
    return GroupRecord(
        parent=str(group.parent),
        agents=group.agents,
        children=tuple(map(str, group.children)),
        source=source,
        values=values,
        advantages=advantages(values),
    )
