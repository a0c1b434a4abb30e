"""People's ratings in the returns that the gradient sees.

A rating stands in the judge's place, with the judge's weight: the last reward of the trajectory is
(1 - weight) * score + weight * rating. One that overrides is the last reward itself.

Only ratings that are there when the update is taken count. MAGRPO is on-policy: its gradient needs
answers that the current weights drew, so an episode of an earlier update is not replayed for a
rating that came after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestry.core.types import Tree, Value
from orchestry.store.journal import Event, Learned, Rated
from orchestry.store.records import EpisodeRecord


def hear(tree: Tree[Any], said: Mapping[str, Rated], weight: float) -> int:
    """Puts ratings, by leaf, into a tree's judged values; returns how many counted.

    `weight` is that of a rating that does not override; at 0 it does not count. Nor does one of a
    trajectory on which the task failed: it scores 0, unless overridden.
    """
    count = 0
    for leaf in tree.leaves:
        one = said.get(str(leaf.id))
        if one is None or not (one.override or (weight and not leaf.trajectory.failed)):
            continue
        share = 1.0 if one.override else weight
        number = (1.0 - share) * leaf.total + share * one.rating
        leaf.judged = Value(number=number, source="judge", feedback=one.comment)
        count += 1
    return count


def notes(asked: int, heard: int, late: Sequence[int], replays: bool) -> list[str]:
    """Lines for the user: how many of the block's ratings counted, and the episodes of those that
    came too late."""
    found = [f"{_ratings(heard)} in the returns"] if heard else []
    if lost := asked - heard:
        why = (
            "learn.credit=replay takes only ratings with --override"
            if replays
            else ("judge.weight is 0, or they rate an unfinished or failed trajectory")
        )
        found.append(f"{_ratings(lost)} not learned from: {why}")
    if late:
        which = ", ".join(map(str, sorted(set(late))))
        found.append(
            f"{len(late)} ratings came after the update that learned from their episodes ({which}) "
            "and change nothing: rate before an update (docs/local.md)"
        )
    return found


def _ratings(count: int) -> str:
    return "1 rating of people is" if count == 1 else f"{count} ratings of people are"


def late_ones(events: Iterable[Event], again: Sequence[EpisodeRecord]) -> list[int]:
    """The episodes of `again` that were rated since the last update, one per rated node."""
    since = dict[tuple[int, str], None]()
    for event in events:
        if isinstance(event, Learned):
            since.clear()
        elif isinstance(event, Rated):
            since[event.episode, event.node] = None
    numbers = {record.episode for record in again}
    return [episode for episode, _ in since if episode in numbers]
