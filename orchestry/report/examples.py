"""Example trajectories: a run's best, median and worst, as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestry.core.types import Turn
from orchestry.store.records import CreditRecord, EpisodeRecord, NodeRecord
from orchestry.store.run import Run


@dataclass(frozen=True, slots=True)
class Example:
    """One trajectory of a run."""

    place: str
    """Its place in order of reward: best, median or worst."""
    record: EpisodeRecord
    leaf: NodeRecord
    reward: float

    @property
    def turns(self) -> list[Turn]:
        """All moves, in order of play."""
        return [turn for node in self.record.path(self.leaf.id) for turn in node.turns]

    @property
    def credits(self) -> list[CreditRecord]:
        """Each agent's part of the return; empty where none was measured on this trajectory."""
        return [credit for credit in self.record.credits if credit.leaf == self.leaf.id]


def examples(run: Run) -> tuple[Example, ...]:
    """The best, the median and the worst trajectory; fewer where a run has not so many.

    Of equal rewards those with credits come first, then the earliest.
    """
    found = sorted(_all(run), key=_order)
    places = {"best": 0, "median": len(found) // 2, "worst": len(found) - 1}
    last = len(found) - 1
    if found and not found[last].credits:  # of the worst, one with credits comes first, too
        worst = [n for n, one in enumerate(found) if one.reward == found[last].reward]
        places["worst"] = next((n for n in worst if found[n].credits), last)
    chosen = {number: place for place, number in reversed([*places.items()]) if found}
    return tuple(
        Example(place, found[number].record, found[number].leaf, found[number].reward)
        for number, place in sorted(chosen.items())
    )


def _all(run: Run) -> Iterator[Example]:
    for record in run.episodes:
        for leaf in record.leaves():
            yield Example("", record, leaf, leaf.score.total)


def _order(one: Example) -> tuple[float, bool, int, str]:
    return -one.reward, not one.credits, one.record.episode, one.leaf.id
