"""Scores that were given once: a resume takes them from the journal and does not judge again.

What a run does next depends on its scores, and code that runs into a time limit on one day may
finish on another; so a score is part of the record like an answer is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from orchestry.journal import Event, Journal, Scored
from orchestry.rollout import Rate
from orchestry.together import together
from orchestry.types import Score, Trajectory


class Verdicts:
    """A Rate that asks another one only for states that the journal has no score of."""

    def __init__(self, rate: Rate, journal: Journal, events: Iterable[Event]) -> None:
        self._rate = rate
        self._journal = journal
        self._known = {event.key: event.score for event in events if isinstance(event, Scored)}

    async def __call__(self, nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        return await together(self._one(node) for node in nodes)

    async def _one(self, node: Trajectory[Any]) -> Score:
        key = state_key(node)
        if key not in self._known:
            (score,) = await self._rate([node])
            self._journal.append(Scored(key=key, score=score))
            self._known[key] = score
        return self._known[key]


def state_key(node: Trajectory[Any]) -> str:
    """32 hex digits over the episode, the place in its tree, and all that was said on the way."""
    digest = blake2b(f"{node.problem.id}\n{node.seed}\n{node.id}".encode(), digest_size=16)
    for turn in node.turns:
        digest.update(f"\x1e{turn.agent}\x1f{turn.completion.text}".encode())
    return digest.hexdigest()
