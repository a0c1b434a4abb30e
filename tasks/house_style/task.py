"""House style: a writer and an editor of short texts learn the conventions of their house."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript, read_problems

from . import prompts, reward
from .brief import Brief

BANK = Path(__file__).with_name("problems.jsonl")
WRITER, EDITOR = prompts.WRITER.role, prompts.EDITOR.role


class HouseStyle(TeamTask):
    """The prompts don't tell the conventions; the feedback names those that a text broke.

    Not judged by default: whether a convention is kept is decided by counting.
    """

    name = "house_style"
    agents = (prompts.WRITER, prompts.EDITOR)
    observe_fixed = TeamTask.observe_single
    weights: ClassVar[Mapping[str, float]] = {"facts": 0.15, "style": 0.85}
    solved = "whole"
    judged = False

    def problems(self, split: Split) -> Sequence[Problem]:
        return read_problems(BANK, split)

    def observe(self, state: Transcript, agent: str) -> str:
        if agent == WRITER:
            return state.problem.prompt
        kind = state.problem.data.get("kind", "text")  # a user's own notes have no data
        return prompts.for_editor(kind, state.last(WRITER))

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        """Of the editor's text; of the draft, until there is one."""
        brief = Brief.of(state.problem)
        text = state.last(EDITOR if state.by(EDITOR) else WRITER).strip()[: prompts.MAX_DRAFT_CHARS]
        return self.score(
            feedback=reward.feedback(text, brief),
            tags=reward.tags(text, brief),
            **reward.parts(text, brief),
        )

    def single(self) -> AgentSpec:
        return prompts.WRITER

    def gold(self, problem: Problem) -> Mapping[str, str]:
        gold = Brief.of(problem).gold
        return {WRITER: gold, EDITOR: gold}

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold; without its first and last words; the notes; nothing."""
        gold = Brief.of(problem).gold
        worse = " ".join(gold.split()[1:-3])
        return [{WRITER: text, EDITOR: text} for text in (gold, worse, problem.prompt, "")]
