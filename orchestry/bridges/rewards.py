"""Rewards of others' environments, which have bounds of their own."""

from __future__ import annotations

from orchestry.core.errors import TaskError


def share_of(task: str, reward: float, low: float, high: float) -> float:
    """Where a reward lies between its bounds, from 0 to 1. Raises TaskError if it does not."""
    if not low <= reward <= high or low == high:
        raise TaskError(
            f"task {task}: a reward of {reward:g} is not between low={low:g} and high={high:g}: "
            "set both to the environment's least and greatest"
        )
    return (reward - low) / (high - low)
