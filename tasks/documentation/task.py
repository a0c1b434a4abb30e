"""Documentation: a documenter describes a module, a reviewer replaces what is wrong or missing."""

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
    datasets,
    errors,
)

from . import examples, prompts, remarks, reward, samples, sources
from .module import read
from .options import Options
from .sections import sections

BANK = Path(__file__).with_name("problems.jsonl")
DOCUMENTER, REVIEWER = prompts.DOCUMENTER.role, prompts.REVIEWER.role


class Documentation(TeamTask):
    """The reviewer's sections replace the documenter's of the same names; the rest stays.

    Not judged by default: nearly every document gets a reward of its own.
    """

    name = "documentation"
    agents = (prompts.DOCUMENTER, prompts.REVIEWER)
    observe_fixed = TeamTask.observe_single
    weights: ClassVar[Mapping[str, float]] = {
        "names": 0.2,
        "parameters": 0.2,
        "examples": 0.35,
        "truth": 0.15,
        "prose": 0.1,
    }
    options_type: ClassVar[type[Frozen]] = Options
    judged = False
    rubric = prompts.RUBRIC
    options: Options

    def problems(self, split: Split) -> Sequence[Problem]:
        path = self.options.path
        if path is not None and path.expanduser().is_dir():
            return sources.problems(path, self.options.max_lines, split)
        return datasets.own(path or BANK, split, ())

    def observe(self, state: Transcript, agent: str) -> str:
        """Raises TaskError if the problem's text is no module with something to document."""
        module = read(state.problem.prompt)
        if not module.names:
            raise errors.TaskError(
                "its text is no Python module with a public function or class: give the source of "
                "one"
            )
        if agent == DOCUMENTER:
            return prompts.for_documenter(module)
        draft = sections(state.last(DOCUMENTER), module.names, mentions=True)
        lacking = remarks.lacking(reward.Document.of(module, draft, {}))
        return prompts.for_reviewer(module, draft, lacking)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        module = read(state.problem.prompt)
        draft = sections(state.last(DOCUMENTER), module.names, mentions=True)
        revised = sections(state.last(REVIEWER), module.names)
        merged = {**draft, **revised}
        document = reward.Document.of(module, merged, await examples.run(module, merged, tools))
        found = reward.parts(document)
        tags = remarks.tags(document, found, replaced=len(revised))
        return self.score(feedback=remarks.feedback(document), tags=tags, **found)

    def single(self) -> AgentSpec:
        return prompts.DOCUMENTER

    def delivered(self, state: Transcript) -> str:
        """The documenter's sections, those that the reviewer replaced in its words."""
        module = read(state.problem.prompt)
        draft = sections(state.last(DOCUMENTER), module.names, mentions=True)
        merged = {**draft, **sections(state.last(REVIEWER), module.names)}
        return "\n\n".join(f"## {name}\n\n{text}" for name, text in merged.items())

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        return next(iter(self.graded(problem)), None)

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold; without examples; its first half; the module itself; nothing."""
        return [{DOCUMENTER: said, REVIEWER: "LGTM"} for said in samples.of(problem)]
