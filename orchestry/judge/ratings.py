"""What a person is asked to rate, and the rating as it goes to the journal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestry.core.errors import ConfigError
from orchestry.core.seeds import derive
from orchestry.judge.calibration import reward
from orchestry.store.journal import Rated
from orchestry.store.records import EpisodeRecord, NodeRecord

TOP = 10
"""The best rating that a person can give; the worst is 0."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A trajectory to rate: an episode, and the node that the trajectory ends in."""

    record: EpisodeRecord
    node: NodeRecord
    why: Literal["best", "worst", "asked for"] = "asked for"

    @property
    def reward(self) -> float:
        """The task's score of the work at the node."""
        return reward(self.node)

    @property
    def key(self) -> tuple[int, str]:
        """Episode and node: what ratings go by."""
        return self.record.episode, self.node.id


def extremes(records: Sequence[EpisodeRecord], best: int, worst: int) -> list[Shown]:
    """The leaves with the highest rewards and with the lowest, of each at most one a problem.

    Of equal ones the first played. They come shuffled, always in the same way, so that their places
    say nothing about them.
    """
    leaves = [Shown(record, node) for record in records for node in record.leaves()]
    top = _one_a_problem(sorted(leaves, key=lambda leaf: -leaf.reward))[:best]
    taken = {leaf.key for leaf in top}
    others = [leaf for leaf in leaves if leaf.key not in taken]
    bottom = _one_a_problem(sorted(others, key=lambda leaf: leaf.reward))[:worst]
    found = [Shown(leaf.record, leaf.node, "best") for leaf in top]
    found += [Shown(leaf.record, leaf.node, "worst") for leaf in bottom]
    return sorted(found, key=lambda leaf: derive("rate", leaf.record.seed, *leaf.key))


def find(records: Sequence[EpisodeRecord], episode: int, node: str | None) -> Shown:
    """The trajectory to a node, or to the episode's best leaf; raises ConfigError for neither."""
    record = next((record for record in records if record.episode == episode), None)
    if record is None:
        known = ", ".join(str(record.episode) for record in records[:20])
        more = ", ..." if len(records) > 20 else ""
        raise ConfigError(f"there is no finished episode {episode}: choose one of {known}{more}")
    moves = {move.id: move for move in record.nodes if move.parent is not None}
    if node is not None and node not in moves:
        leaves = ", ".join(leaf.id for leaf in record.leaves())
        raise ConfigError(
            f"episode {episode} has no move that leads to node '{node}': choose one of its leaves "
            f"({leaves}), or a node on the way to one"
        )
    return Shown(record, moves[node or record.best])


def read_rating(text: str) -> float:
    """A rating as a person types it, from 0 to TOP, in [0, 1]; raises ConfigError, in one line."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= TOP:  # no order holds for NaN either
        raise ConfigError(
            f"{text!r} is no rating: give a number from 0 (useless) to {TOP} (could not be better)"
        )
    return number / TOP


def rated(shown: Shown, rating: float, comment: str, at: float) -> Rated:
    """The journal's event; `rating` in [0, 1], `at` in Unix seconds."""
    text = " ".join(comment.encode("utf-8", "replace").decode().split())
    return Rated(
        episode=shown.record.episode, node=shown.node.id, rating=rating, comment=text, at=at
    )


def _one_a_problem(ranked: Sequence[Shown]) -> list[Shown]:
    first = dict[str, Shown]()
    for leaf in ranked:
        first.setdefault(leaf.record.problem, leaf)
    return list(first.values())
