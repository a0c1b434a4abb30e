"""Research: a retriever chooses notes, an analyst extracts claims, a writer answers and cites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from orchestry import (
    AgentSpec,
    Frozen,
    Problem,
    Score,
    Split,
    TeamTask,
    Tools,
    Transcript,
    datasets,
)

from . import cited, prompts, remarks, reward
from .notes import pool
from .options import Options

BANK = Path(__file__).with_name("problems.jsonl")
RETRIEVER, ANALYST, WRITER = (
    spec.role for spec in (prompts.RETRIEVER, prompts.ANALYST, prompts.WRITER)
)


class Research(TeamTask):
    """Each sees only what the one before handed on: titles, then notes, then claims.

    Not judged by default: nearly every answer gets a reward of its own.
    """

    name = "research"
    agents = (prompts.RETRIEVER, prompts.ANALYST, prompts.WRITER)
    weights: ClassVar[Mapping[str, float]] = {
        "retrieval": 0.2,
        "claims": 0.15,
        "citations": 0.2,
        "coverage": 0.35,
        "prose": 0.1,
    }
    options_type: ClassVar[type[Frozen]] = Options
    judged = False
    rubric = prompts.RUBRIC
    options: Options

    def problems(self, split: Split) -> Sequence[Problem]:
        return datasets.own(self.options.path or BANK, split, ())

    def observe(self, state: Transcript, agent: str) -> str:
        question, work = state.problem.prompt, self._work(state)
        if agent == RETRIEVER:
            return prompts.for_retriever(question, work.pool)
        if agent == ANALYST:
            return prompts.for_analyst(question, work.retrieved)
        return prompts.for_writer(question, work.claims)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        work = self._work(state)
        found = reward.parts(work)
        return self.score(feedback=remarks.feedback(work), tags=remarks.tags(work, found), **found)

    def single(self) -> AgentSpec:
        return prompts.ALONE

    def observe_single(self, problem: Problem) -> str:
        return prompts.for_one(problem.prompt, pool(problem, self.options.pool))

    observe_fixed = observe_single

    async def evaluate_single(self, state: Transcript, answer: str, tools: Tools) -> Score:
        """The notes that it cites are those that it chose. Its sentences are the claims too, and no
        others' words."""
        work = self._work(state)
        plain = replace(work, claims="")
        found = {**reward.parts(plain), "claims": reward.claims(work)}
        return self.score(
            feedback=remarks.feedback(plain), tags=remarks.tags(plain, found), **found
        )

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        return next(iter(self.graded(problem)), None)

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold; with its claims for an answer; without a citation; the titles; nothing."""
        if "gold" not in problem.data:
            return ()
        ids, claims, answer = problem.data["gold"]
        said = [
            *((ids, claims, answer), (ids, claims, claims.split("\n")[0])),
            *((ids, claims, cited.uncited(answer)), (ids, "", ""), ("", "", "")),
        ]
        return [dict(zip((RETRIEVER, ANALYST, WRITER), texts, strict=True)) for texts in said]

    def _work(self, state: Transcript) -> reward.Work:
        return reward.Work(
            problem=state.problem,
            options=self.options,
            pool=pool(state.problem, self.options.pool),
            named=cited.ids(state.last(RETRIEVER)),
            claims=state.last(ANALYST),
            answer=state.last(WRITER),
        )
