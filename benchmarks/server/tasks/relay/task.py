"""Three agents in order with a reward that costs nothing: what is left is the scheduler's time."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript

COUNT = 64


class Relay(TeamTask):
    """Writer, reviewer and refactorer; the score is a checksum of what was said last."""

    name = "relay"
    agents = (
        AgentSpec(role="writer", goal="Write the function."),
        AgentSpec(role="reviewer", goal="Review the function."),
        AgentSpec(role="refactorer", goal="Improve the function by the review."),
    )

    def problems(self, split: Split) -> Sequence[Problem]:
        prompts = [f"Task {i}: reverse a string." for i in range(COUNT)]
        return [Problem(id=f"relay-{i}", prompt=text) for i, text in enumerate(prompts)]

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        said = state.said[-1][1] if state.said else ""
        return self.score(quality=(crc32(said.encode()) % 1000) / 1000)
