"""What a local run says where its episodes teach nothing: before it starts, and after an update."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

IN_A_ROW = 3
"""Updates without a lesson after which the line becomes a warning."""


def leftover(episodes: int, every: int) -> list[str]:
    """Before a run: the episodes that no update is made from."""
    left = episodes % every
    if not left:
        return []
    what = f"an update takes learn.every={every} episodes, the run has {episodes}"
    if left == episodes:
        return [f"nothing is learned: {what}: raise --episodes to {every}, or lower learn.every"]
    return [
        f"the last {left} of {episodes} episodes teach nothing, since {what}: set --episodes "
        f"{episodes - left} or {episodes - left + every}"
    ]


def empty(samples: Sequence[int], reward: float, group: int, last: bool) -> list[str]:
    """After an update; `samples`: actions learned from in each so far, `reward`: the block's mean.

    Says it the first time, more strongly after IN_A_ROW in a row, and in sum after the `last`.
    """
    notes, idle = list[str](), len(list(takewhile(lambda n: not n, reversed(samples))))
    if idle and idle == samples.count(0) == 1:
        notes.append(
            f"nothing to learn from in this update: in every group the {group} trajectories of a "
            f"problem earned the same (mean reward {reward:.3f}): {_fix(reward)}"
        )
    elif idle and idle % IN_A_ROW == 0:
        notes.append(
            f"warning: {idle} updates in a row had nothing to learn from (mean reward "
            f"{reward:.3f}), and the weights have not moved since: stop here and {_fix(reward)}"
        )
    if last and not any(samples):
        notes.append(
            f"nothing was learned: none of the {len(samples)} updates found a difference in reward "
            "within a group, and the weights are those that the run began with"
        )
    elif last and 0 in samples:
        notes.append(f"{samples.count(0)} of {len(samples)} updates had nothing to learn from")
    return notes


def _fix(reward: float) -> str:
    if reward <= 0.05:
        return "take easier problems, more sampling.max_tokens or a start that can do some of them"
    if reward >= 0.95:
        return "take harder problems: these are solved"
    return (
        "raise sampling.temperature or learn.group_size, or take a reward with more steps between "
        "0 and 1"
    )
