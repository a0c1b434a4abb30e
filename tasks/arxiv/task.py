"""Abstract expansion: of one abstract one agent expands the background, one the method, at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from orchestry import AgentSpec, BaseTask, Frozen, Problem, Score, Split, Tools, datasets

from . import prompts, reward
from .options import Options

BANK = Path(__file__).with_name("problems.jsonl")
HUB = datasets.Texts(
    hub="OpenMLRL/arXiv_abstract",
    field="abstract_text",
    prefix="arxiv",
    splits={"train": "train", "dev": "train", "test": "val"},
)
BACKGROUND, METHOD = prompts.BACKGROUND.role, prompts.METHOD.role


@dataclass(frozen=True, slots=True)
class Paragraphs:
    """An abstract, and the two texts once they are written."""

    problem: Problem
    background: str = ""
    method: str = ""
    written: bool = False


class Arxiv(BaseTask[Paragraphs]):
    """A Dec-POMDP of one turn: neither writer sees the other's text, and they share one reward."""

    name = "arxiv"
    agents = (prompts.BACKGROUND, prompts.METHOD)
    weights: ClassVar[Mapping[str, float]] = reward.WEIGHTS
    options_type: ClassVar[type[Frozen]] = Options
    judged = False  # every pair gets a graded reward
    rubric = prompts.RUBRIC
    options: Options

    def problems(self, split: Split) -> Sequence[Problem]:
        if self.options.bank == "own":
            return datasets.own(self.options.path or BANK, split, ["arxiv"])
        own = self.options
        return HUB.problems(own.path, own.rows, split, own.splits == "published")

    def reset(self, problem: Problem, seed: int) -> Paragraphs:
        return Paragraphs(problem)

    def to_act(self, state: Paragraphs) -> tuple[str, ...]:
        return () if state.written else (BACKGROUND, METHOD)

    def observe(self, state: Paragraphs, agent: str) -> str:
        return prompts.ask(state.problem.prompt)

    def step(self, state: Paragraphs, actions: Mapping[str, str]) -> Paragraphs:
        background, method = (actions.get(role, "").strip() for role in (BACKGROUND, METHOD))
        return replace(state, background=background, method=method, written=True)

    async def evaluate(self, state: Paragraphs, tools: Tools) -> Score:
        abstract = state.problem.prompt
        pair = reward.text(state.background, abstract), reward.text(state.method, abstract)
        found = reward.parts(*pair, self.options)
        return self.score(feedback=reward.remarks(*pair), tags=reward.tags(*pair, found), **found)

    def single(self) -> AgentSpec:
        return prompts.ALONE

    def observe_single(self, problem: Problem) -> str:
        return prompts.ask(problem.prompt)

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        return next(iter(self.graded(problem)), None)

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold pair; its second text cut in half; the first twice; the abstract; nothing."""
        if "gold" not in problem.data:
            return ()
        first, second = problem.data["gold"]
        half = " ".join(second.split()[: len(second.split()) // 2])
        seconds = (second, half, first, problem.prompt)
        pairs = [*((first, other) for other in seconds), ("", "")]
        return [{BACKGROUND: one, METHOD: other} for one, other in pairs]
