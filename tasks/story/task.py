"""Story: a writer drafts from a premise, an editor revises, a narrator tells the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    read_problems,
)

from . import prompts, remarks, reward
from .options import Options
from .plot import Plot

BANK = Path(__file__).with_name("problems.jsonl")
WRITER, EDITOR, NARRATOR = (
    spec.role for spec in (prompts.WRITER, prompts.EDITOR, prompts.NARRATOR)
)


class Story(TeamTask):
    """The narrator never sees the premise: what writer and editor leave out, it cannot tell."""

    name = "story"
    agents = (prompts.WRITER, prompts.EDITOR, prompts.NARRATOR)
    observe_fixed = TeamTask.observe_single
    weights: ClassVar[Mapping[str, float]] = reward.WEIGHTS
    options_type: ClassVar[type[Frozen]] = Options
    judged = False  # every story gets a graded reward
    rubric = prompts.RUBRIC
    options: Options

    def problems(self, split: Split) -> Sequence[Problem]:
        found = read_problems((self.options.path or BANK).expanduser(), split)
        for problem in found:  # a fault shows before anything is asked of a model
            Plot.of(problem)
        return found

    def to_act(self, state: Transcript) -> tuple[str, ...]:
        order = (*(WRITER, EDITOR) * self.options.rounds, NARRATOR)
        return order[len(state.said) :][:1]

    def observe(self, state: Transcript, agent: str) -> str:
        premise, rounds = state.problem.prompt, self.options.rounds
        story = "\n".join(state.by(EDITOR))
        if agent == NARRATOR:
            return prompts.ask_narrator(story)
        if agent == EDITOR:
            return prompts.ask_editor(premise, state.last(WRITER))
        plot = Plot.of(state.problem).part(len(state.by(WRITER)), rounds)
        low, high = self.options.min_words, self.options.max_words
        return prompts.ask_writer(premise, plot, story, words=(3 * low + high) // 4 // rounds)

    def step(self, state: Transcript, actions: Mapping[str, str]) -> Transcript:
        return super().step(state, {role: text.strip() for role, text in actions.items()})

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        drafts, edits = state.by(WRITER), state.by(EDITOR)
        work = reward.Work(state.problem, self.options, drafts, edits, state.last(NARRATOR))
        found = work.parts()
        return self.score(feedback=remarks.remarks(work), tags=remarks.tags(work, found), **found)

    def single(self) -> AgentSpec:
        return prompts.ALONE

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        return next(iter(self.graded(problem)), None)

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold; its draft unedited; told by heart; the premise thrice; nothing. An agent's one
        text can't serve for several rounds, so there are none then."""
        if "gold" not in problem.data or self.options.rounds > 1:
            return ()
        *scenes, telling = problem.data["gold"]
        draft, edited = ("\n".join(texts) for texts in zip(*scenes, strict=True))
        premise = problem.prompt
        works = [
            *((draft, edited, telling), (draft, draft, telling), (draft, edited, edited)),
            *((premise, premise, premise), ("", "", "")),
        ]
        return [dict(zip((WRITER, EDITOR, NARRATOR), work, strict=True)) for work in works]
