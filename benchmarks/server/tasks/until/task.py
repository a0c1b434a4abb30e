"""Two agents take turns until an answer's checksum says so: the answers decide the length."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript

MOST_TURNS = 6
ONE_IN = 4
"""One answer in so many ends the talk."""


class Until(TeamTask):
    """Ends after one to MOST_TURNS turns."""

    name = "until"
    agents = (AgentSpec(role="asker", goal="Ask."), AgentSpec(role="teller", goal="Answer."))

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(id=f"until-{i}", prompt=f"Riddle {i}.", split=split) for i in range(8)]

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        turn = len(state.said)
        if turn == MOST_TURNS or (turn and _checksum(state) % ONE_IN == 0):
            return ()
        return (self.agents[turn % 2].role,)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        return self.score(quality=(_checksum(state) % 11) / 10)


def _checksum(state: Transcript) -> int:
    return crc32(state.said[-1][1].encode()) if state.said else 0
