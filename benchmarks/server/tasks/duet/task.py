"""Two agents act at once for two rounds; the reward is a checksum of what both said last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from orchestry import AgentSpec, BaseTask, Problem, Score, Split, Tools

ROUNDS = 2


@dataclass(frozen=True)
class Rounds:
    """What was said, a joint action a round."""

    problem: Problem
    said: tuple[tuple[tuple[str, str], ...], ...] = ()


class Duet(BaseTask[Rounds]):
    """Each agent sees what the other one said in the round before."""

    name = "duet"
    agents = (AgentSpec(role="left", goal="Write."), AgentSpec(role="right", goal="Answer."))

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(id=f"duet-{i}", prompt=f"Scene {i}.", split=split) for i in range(8)]

    def reset(self, problem: Problem, seed: int) -> Rounds:
        return Rounds(problem)

    def to_act(self, state: Rounds) -> tuple[str, ...]:
        return () if len(state.said) == ROUNDS else ("left", "right")

    def observe(self, state: Rounds, agent: str) -> str:
        heard = [text for moves in state.said for who, text in moves if who != agent]
        return "\n\n".join([state.problem.prompt, *heard])

    def step(self, state: Rounds, actions: Mapping[str, str]) -> Rounds:
        return replace(state, said=(*state.said, tuple(sorted(actions.items()))))

    async def evaluate(self, state: Rounds, tools: Tools) -> Score:
        said = repr(state.said[-1]) if state.said else ""
        return self.score(quality=(crc32(said.encode()) % 11) / 10)
