"""What each node of a finished tree is worth: the mean of the leaves below it, else its own score.

A judge's values come between the two; it has no part here yet.
"""

from __future__ import annotations

from typing import Any, Literal

from orchestry.types import Group, Tree, Value

Source = Literal["leaf", "judge", "task"]


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
    """One value a sample, all of one source: leaves if every child has some, else own scores."""
    values = [tree.values[child] for child in group.children]
    if all(value.source == "leaf" for value in values):
        return "leaf", tuple(value.number for value in values)
    scores = [tree.trajectories[child].score for child in group.children]
    return "task", tuple(score.total for score in scores if score is not None)
