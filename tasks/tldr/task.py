"""TLDR: two writers sum up the same post at once, one in a sentence, one at length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from orchestry import AgentSpec, BaseTask, Frozen, Problem, Score, Split, Tools, datasets

from . import prompts, reward, sources
from .options import Options

BANK = Path(__file__).with_name("problems.jsonl")
CONCISE, DETAILED = prompts.CONCISE.role, prompts.DETAILED.role


@dataclass(frozen=True, slots=True)
class Summaries:
    """A post, and the two texts once they are written."""

    problem: Problem
    concise: str = ""
    detailed: str = ""
    written: bool = False


class Tldr(BaseTask[Summaries]):
    """A Dec-POMDP of one turn: neither writer sees the other's text, and they share one reward.

    Not judged by default: every pair of texts gets a graded reward, so nothing is left undecided.
    """

    name = "tldr"
    agents = (prompts.CONCISE, prompts.DETAILED)
    weights: ClassVar[Mapping[str, float]] = {
        "length": 0.5,
        "ratio": 1.0,
        "words": 0.5,
        "style": 1.0,
    }
    options_type: ClassVar[type[Frozen]] = Options
    judged = False
    rubric = prompts.RUBRIC
    options: Options

    def problems(self, split: Split) -> Sequence[Problem]:
        if self.options.bank == "own":
            return datasets.own(self.options.path or BANK, split, ["tldr"])
        return sources.POSTS.problems(self.options.path, self.options.rows, split)

    def reset(self, problem: Problem, seed: int) -> Summaries:
        return Summaries(problem)

    def to_act(self, state: Summaries) -> tuple[str, ...]:
        return () if state.written else (CONCISE, DETAILED)

    def observe(self, state: Summaries, agent: str) -> str:
        return prompts.ask(state.problem.prompt)

    def step(self, state: Summaries, actions: Mapping[str, str]) -> Summaries:
        concise, detailed = (actions.get(role, "").strip() for role in (CONCISE, DETAILED))
        return replace(state, concise=concise, detailed=detailed, written=True)

    async def evaluate(self, state: Summaries, tools: Tools) -> Score:
        post = state.problem.prompt
        pair = reward.text(state.concise, post), reward.text(state.detailed, post)
        found = reward.parts(*pair, self.options)
        return self.score(feedback=reward.remarks(*pair), tags=reward.tags(*pair, found), **found)

    def single(self) -> AgentSpec:
        return prompts.ALONE

    def observe_single(self, problem: Problem) -> str:
        return prompts.ask(problem.prompt)

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        return next(iter(self.graded(problem)), None)

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold pair; a detailed text cut in half; the concise one twice; the post; nothing."""
        if "gold" not in problem.data:
            return ()
        concise, detailed = problem.data["gold"]
        half = " ".join(detailed.split()[: len(detailed.split()) // 2])
        pairs = [
            (concise, detailed),
            (concise, half),
            (concise, concise),
            (concise, problem.prompt),
            ("", ""),
        ]
        return [{CONCISE: short, DETAILED: long} for short, long in pairs]
