"""What a learned critic rates: the states of finished episodes, each with all that the team saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import Any

from orchestry.backends.local.batch import _Rewards, state_returns
from orchestry.core.types import Group, NodeId, Tree


@dataclass(frozen=True, slots=True)
class State:
    """One state before a stage."""

    ids: tuple[int, ...]
    """Every agent's prompts and answers so far, and the prompts of those who act next."""
    target: float
    """The mean return of what was drawn in it."""
    samples: int
    """The number of joint actions drawn in it, its weight."""
    tree: int
    """The number of its episode in the update."""
    id: NodeId


def rated(trees: Sequence[Tree[Any]], rewards: _Rewards, discount: float) -> list[State]:
    """The states of an update's episodes in which agents act; see `batch.gather`."""
    return [state for n, tree in enumerate(trees) for state in _states(n, tree, rewards, discount)]


def by_tree(
    states: Sequence[State], values: Sequence[float], trees: int
) -> list[dict[NodeId, float]]:
    """The values of each episode's states."""
    found: list[dict[NodeId, float]] = [{} for _ in range(trees)]
    for state, value in zip(states, values, strict=True):
        found[state.tree][state.id] = value
    return found


def _states(number: int, tree: Tree[Any], rewards: _Rewards, discount: float) -> list[State]:
    returned, found = state_returns(tree, rewards, discount), list[State]()
    for group in tree.groups:
        returns_J = [returned[id] for id in group.children]
        mean = fsum(returns_J) / len(returns_J)
        found.append(State(_seen(tree, group), mean, len(returns_J), number, group.parent))
    return found


def _seen(tree: Tree[Any], group: Group) -> tuple[int, ...]:
    turns, acting = tree.siblings(group)[0].trajectory.turns, len(group.agents)
    found = list[int]()
    for place, turn in enumerate(turns):
        before = place < len(turns) - acting
        # A later prompt of a move has the agent's own calls.
        said = turn.completion.answers[-1 if before else 0]
        if (tokens := said.tokens) is not None:  # None: nothing was drawn
            found += tokens.prompt_ids
            found += tokens.ids if before else ()
    return tuple(found)


def explained(targets: Sequence[float], values: Sequence[float]) -> float:
    """The share of the targets' variance that the values explain; 0 if they have none. Negative for
    values that are worse than the mean."""
    middle = fmean(targets)
    spread = fsum((target - middle) ** 2 for target in targets)
    if not spread:
        return 0.0
    errors = [target - value for target, value in zip(targets, values, strict=True)]
    mean = fmean(errors)
    return 1.0 - fsum((error - mean) ** 2 for error in errors) / spread
