"""Small real tasks and policies that the tests of rollout, engine and command line share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from orchestry import AgentSpec, BaseTask, Problem, Score, Split, TeamTask, Tools, Transcript
from orchestry.core.types import Completion, Member, Request

SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class Words(TeamTask):
    """Writer, reviewer, refactorer; the reward is how many 'a's the last code has, up to ten.

    A reviewer's turn changes nothing, so that its siblings tie.
    """

    name: ClassVar[str] = "words"
    agents: ClassVar[tuple[AgentSpec, ...]] = (
        AgentSpec(role="writer", goal="write"),
        AgentSpec(role="reviewer", goal="review"),
        AgentSpec(role="refactorer", goal="improve"),
    )

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(id=f"{split}-{n}", prompt=f"word {n}", split=split) for n in range(3)]

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        work = state.last("refactorer") or state.last("writer")
        return self.score(quality=min(1.0, work.count("a") / 10))


@dataclass(frozen=True)
class Pair:
    """State of a joint action: what each of two agents said."""

    problem: Problem
    said: tuple[tuple[str, str], ...] = ()


class Duo(BaseTask[Pair]):
    """Two agents act at once, once; the reward is one if they agree."""

    name: ClassVar[str] = "duo"
    agents: ClassVar[tuple[AgentSpec, ...]] = (AgentSpec(role="left"), AgentSpec(role="right"))

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(id=f"{split}-0", prompt="agree", split=split)]

    def reset(self, problem: Problem, seed: int) -> Pair:
        return Pair(problem)

    def to_act(self, state: Pair) -> tuple[str, ...]:
        return () if state.said else ("left", "right")

    def observe(self, state: Pair, agent: str) -> str:
        return f"{state.problem.prompt}, {agent}"

    def step(self, state: Pair, actions: Mapping[str, str]) -> Pair:
        return replace(state, said=tuple(sorted(actions.items())))

    async def evaluate(self, state: Pair, tools: Tools) -> Score:
        return self.score(quality=float(len({text for _, text in state.said}) == 1))


class Scripted:
    """A policy from a function of the request; it keeps what it was asked.

    A call of which the function says None has failed for good.
    """

    def __init__(self, answer: Callable[[Request], str | None]) -> None:
        self.answer = answer
        self.batches: list[list[Request]] = []

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        batch = [
            request.model_copy(update={"sample_index": index})
            for request in requests
            for index in range(n)
        ]
        self.batches.append(batch)
        done = iter(_completion(self.answer(request), request) for request in batch)
        return [[next(done) for _ in range(n)] for _ in requests]

    @property
    def calls(self) -> int:
        return sum(len(batch) for batch in self.batches)


def _completion(text: str | None, request: Request) -> Completion:
    if text is None:
        return Completion(text="", model=request.model, stop="failed", failed="no luck")
    return Completion(text=text, model=request.model, usd=0.01)


def team(task: BaseTask[Pair] | BaseTask[Transcript]) -> dict[str, Member]:
    """Every agent of a task with plain settings."""
    return {spec.role: Member(spec.role, spec.goal, "m", 64) for spec in task.agents}
