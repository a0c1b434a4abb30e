"""Three agents in order; everyone's checksum counts, so siblings differ and sometimes tie."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from zlib import crc32

from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript

COUNT = 48
STEPS = 10


class Trio(TeamTask):
    """Writer, reviewer and refactorer; the reward is the mean of what each of them earned."""

    name = "trio"
    agents = (
        AgentSpec(role="writer", goal="Write the function."),
        AgentSpec(role="reviewer", goal="Review the function."),
        AgentSpec(role="refactorer", goal="Improve the function by the review."),
    )

    def problems(self, split: Split) -> Sequence[Problem]:
        prompts = [f"Task {i} ({split}): reverse a string." for i in range(COUNT)]
        return [
            Problem(id=f"trio-{split}-{i}", prompt=text, split=split)
            for i, text in enumerate(prompts)
        ]

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        earned = [crc32(text.encode()) % (STEPS + 1) / STEPS for _, text in state.said]
        return self.score(quality=fmean(earned or [0.0]))
