"""The values of a tree's nodes, and the tree as a record for the disk.

A node's value is the mean of the leaves below it; else the judge's value; else the task's score of
the work so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import fmean
from typing import Any

from orchestry.core.types import (
    Group,
    Judgement,
    Node,
    NodeId,
    Score,
    Siblings,
    Source,
    StateT,
    Tree,
    Value,
)
from orchestry.store.records import CreditRecord, EpisodeRecord, GroupRecord, NodeRecord


def apply(tree: Tree[Any], siblings: Siblings[Any], judgement: Judgement) -> None:
    """Mixes the judge's numbers with the task's scores into the siblings' values.

    A relative judgement does not change children that ended the episode. A malformed one changes
    nothing.
    """
    tree.outcomes.append(judgement.outcome)
    if judgement.outcome == "malformed":
        return
    rated = list(zip(siblings.children, judgement.values, judgement.opinions, strict=True))
    for child, _, opinion in rated:
        tree.nodes[child.id].opinion = opinion
    rated = [each for each in rated if not each[0].failed]  # it scores 0, whatever a judge says
    if judgement.relative:
        rated = [each for each in rated if each[0].id not in siblings.ended]
    scores = [child.score.total if child.score else 0.0 for child, _, _ in rated]
    numbers = mix(scores, [said.number for _, said, _ in rated], judgement)
    for (child, said, _), number in zip(rated, numbers, strict=True):
        node = tree.nodes[child.id]
        node.value = node.judged = Value(number=number, source="judge", feedback=said.feedback)


def mix(
    scores_G: Sequence[float],
    judged_G: Sequence[float],
    judgement: Judgement,
) -> list[float]:
    """The values of one sibling set, in [0, 1]; shapes (G,) and (G,) to (G,).

    Relative values are shifted so that their mean equals that of the scores, as far as [0, 1]
    allows. So rated and unrated sets can be pruned together, and a strict judge is no disadvantage.
    """
    weight = judgement.weight
    pairs = zip(scores_G, judged_G, strict=True)
    mixed_G = [(1.0 - weight) * score + weight * number for score, number in pairs]
    if not (judgement.relative and mixed_G):
        return mixed_G
    shift = fmean(scores_G) - fmean(mixed_G)
    shift = max(-min(mixed_G), min(shift, 1.0 - max(mixed_G)))
    return [min(1.0, max(0.0, number + shift)) for number in mixed_G]


def order(tree: Tree[Any]) -> None:
    """Puts all into the order of play, where chains went on at their own pace."""
    tree.nodes = dict(sorted(tree.nodes.items(), key=lambda one: (one[0].stage, one[0])))
    tree.groups.sort(key=lambda group: (group.parent.stage, group.parent))
    tree.answers.sort(key=lambda one: (one.usd, one.input_tokens, one.output_tokens, one.text))
    tree.failures.sort()


def back_up(tree: Tree[Any]) -> None:
    """If a node has leaves below it, replaces its own score by the mean over their samples.

    A child that k samples led to counts k times.
    """
    for id, number in _means(tree, {leaf.id: leaf.number for leaf in tree.leaves}).items():
        node = tree.nodes[id]
        feedback = node.value.feedback if node.value else ""
        node.value = Value(number=number, source="leaf", feedback=feedback)


def _means(tree: Tree[Any], numbers: Mapping[NodeId, float]) -> dict[NodeId, float]:
    """The mean of the leaves' numbers, in [0, 1], below each node that has some. Sums are exact, so
    that leaves which earn the same make equal means in any order."""
    sums = {id: (Fraction(number), 1) for id, number in numbers.items()}
    for group in reversed(tree.groups):
        below = [sums[child] for child in group.children if child in sums]
        if below:
            before, count = sums.get(group.parent, (Fraction(), 0))
            sums[group.parent] = (
                before + sum(total for total, _ in below),
                count + sum(leaves for _, leaves in below),
            )
    return {id: float(total / leaves) for id, (total, leaves) in sums.items()}


def group_values(tree: Tree[Any], group: Group) -> tuple[Source, tuple[float, ...]]:
    """One value per sample, all of one source.

    From leaves if every child has some; else from the judge if it rated every child; else own
    scores.
    """
    siblings = tree.siblings(group)
    if all(node.value and node.value.source == "leaf" for node in siblings):
        return "leaf", tuple(node.number for node in siblings)
    judged = [node.judged.number for node in siblings if node.judged]
    if len(judged) == len(siblings):
        return "judge", tuple(judged)
    return "task", tuple(node.total for node in siblings)


def advantages(values_G: Sequence[float]) -> tuple[float, ...]:
    """Group-relative advantages: each value minus its group's mean; shape (G,) to (G,).

    MAGRPO (arXiv 2508.04652), equation 1: no division by the standard deviation. Values that are
    all equal give exact zeros.
    """
    if len(set(values_G)) <= 1:
        return (0.0,) * len(values_G)
    mean = sum(values_G) / len(values_G)
    return tuple(value - mean for value in values_G)


def episode_record(
    tree: Tree[Any],
    episode: int,
    credits: Sequence[CreditRecord] = (),
    credit_calls: int = 0,
) -> EpisodeRecord:
    """Flattens one episode, with the credits that its agents were given and their calls."""
    root, leaves = tree.root, tree.leaves
    rewards = _means(tree, {leaf.id: leaf.total for leaf in leaves})
    start, best = root.trajectory, best_leaf(tree) if leaves else root
    return EpisodeRecord(
        episode=episode,
        problem=start.problem.id,
        split=start.problem.split,
        seed=start.seed,
        best=str(best.id),
        reward=best.total,
        mean_leaf_reward=rewards.get(root.id, 0.0),
        calls=sum(len(answer.answers) for answer in tree.answers),
        usd=sum(answer.usd for answer in tree.answers),
        input_tokens=sum(answer.input_tokens for answer in tree.answers),
        output_tokens=sum(answer.output_tokens for answer in tree.answers),
        nodes=tuple(_node(tree, node) for node in tree.nodes.values()),
        groups=tuple(_group(tree, group) for group in tree.groups),
        failed_calls=len(tree.failures),
        left_out=dict(Counter(tree.failures)),
        failed="" if leaves else (tree.failures or ["no trajectory ended"])[0],
        judgements=dict(sorted(Counter(tree.outcomes).items())),
        credits=tuple(credits),
        credit_calls=credit_calls,
    )


def best_leaf(tree: Tree[StateT]) -> Node[StateT]:
    """The leaf with the highest value, then the highest score; the first, if tied."""
    return max(tree.leaves, key=_worth)


def worst_leaf(tree: Tree[StateT]) -> Node[StateT]:
    """The leaf with the lowest value, then the lowest score; the first, if tied."""
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
        trials=group.trials,
    )
