"""What each node of a tree is worth: the mean of the leaves below it, else what the central judge
makes of it, else the task's own score of the work so far.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from orchestry.types import Group, Judgement, Siblings, Source, Tree, Value


def undecided(siblings: Siblings[Any]) -> bool:
    """Whether the task's scores leave two siblings tied with whom the episode goes on."""
    going = [child for child in siblings.children if child.id not in siblings.ended]
    scores = [child.score.total for child in going if child.score]
    return len(set(scores)) < len(scores)


def apply(tree: Tree[Any], siblings: Siblings[Any], judgement: Judgement) -> None:
    """Mixes the judge's numbers with the task's scores into the siblings' values.

    Relative numbers are shifted so that the set's mean stays that of its scores: sets that the
    judge saw are then pruned beside sets that it did not, and a strict judge costs nobody a place.
    They leave children that ended to evaluate(). A malformed judgement changes nothing.
    """
    tree.outcomes.append(judgement.outcome)
    if judgement.outcome == "malformed":
        return
    scores = [child.score.total if child.score else 0.0 for child in siblings.children]
    shift = 0.0
    if judgement.relative:
        shift = fmean(scores) - fmean(value.number for value in judgement.values)
    rated = zip(siblings.children, scores, judgement.values, judgement.opinions, strict=True)
    for child, own, said, opinion in rated:
        tree.opinions[child.id] = opinion
        if judgement.relative and child.id in siblings.ended:
            continue
        mixed = (1.0 - judgement.weight) * own + judgement.weight * (said.number + shift)
        number = min(1.0, max(0.0, mixed))
        tree.judged[child.id] = Value(number=number, source="judge", feedback=said.feedback)
        tree.values[child.id] = tree.judged[child.id]


def back_up(tree: Tree[Any]) -> None:
    """Replaces a node's own score by the mean over the leaf samples below it, where it has any.

    A child that k samples led to counts k times.
    """
    sums = {leaf: (tree.values[leaf].number, 1) for leaf in tree.leaves}
    for group in reversed(tree.groups):
        below = [sums[child] for child in group.children if child in sums]
        if below:
            before, count = sums.get(group.parent, (0.0, 0))
            sums[group.parent] = (
                before + sum(total for total, _ in below),
                count + sum(leaves for _, leaves in below),
            )
    for node, (total, leaves) in sums.items():
        feedback = tree.values[node].feedback if node in tree.values else ""
        number = min(1.0, total / leaves)  # a mean of ones may exceed one by a rounding error
        tree.values[node] = Value(number=number, source="leaf", feedback=feedback)


def group_values(tree: Tree[Any], group: Group) -> tuple[Source, tuple[float, ...]]:
    """One value a sample, all of one source.

    Leaves if every child has some, else the judge's if it rated every child, else own scores.
    """
    values = [tree.values[child] for child in group.children]
    if all(value.source == "leaf" for value in values):
        return "leaf", tuple(value.number for value in values)
    judged = [tree.judged[child].number for child in group.children if child in tree.judged]
    if len(judged) == len(group.children):
        return "judge", tuple(judged)
    scores = [tree.trajectories[child].score for child in group.children]
    return "task", tuple(score.total for score in scores if score is not None)
