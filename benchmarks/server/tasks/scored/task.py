"""One agent writes; each answer is scored by a program that computes for a while."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from orchestry import AgentSpec, Call, Problem, Score, Split, TeamTask, Tools, Transcript

WORK = """
def work(n):
    total = 0
    for i in range(n):
        total += i % 7
    return total
"""
TURNS = 2_400_000
"""About 100 ms of a core."""


class Scored(TeamTask):
    """The reward is a checksum of the answer, which a program confirms slowly."""

    name = "scored"
    agents = (AgentSpec(role="writer", goal="Write."),)

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(id=f"scored-{i}", prompt=f"Scene {i}.", split=split) for i in range(8)]

    def observe(self, state: Transcript, agent: str) -> str:
        return state.problem.prompt

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        mark = crc32(repr(state.said).encode())
        (result,) = await tools.sandbox.run(f"{WORK}# {mark}\n", "work", [Call(args=(TURNS,))])
        return self.score(quality=(mark % 11) / 10 if result.verdict == "value" else 0.0)
