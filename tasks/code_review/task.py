"""Code review: a writer drafts a function, a reviewer finds bugs, a refactorer delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchestry import (
    AgentSpec,
    Frozen,
    Problem,
    Score,
    Split,
    TeamTask,
    Tools,
    Transcript,
    best_constant,
    beyond_chance,
    extract_code,
    join_code,
    show_call,
)

from . import reward, sources
from .flaws import flaws, plain
from .options import Options
from .outcome import Outcome, run_tests

BANK = Path(__file__).with_name("problems.jsonl")
FLAWED = 10  # codes with a bug that a judge's check may choose from; many are equally wrong
MAX_REVIEW_CHARS = 1200  # what the refactorer sees of a review: small models have small contexts

WRITER = AgentSpec(
    role="writer",
    goal="Write a correct function.",
    system_prompt="You are a Python programmer. Answer with one Python code block that defines "
    "the function, and nothing else.",
)
REVIEWER = AgentSpec(
    role="reviewer",
    goal="Find the bugs that tests would find.",
    system_prompt="You review Python code. Name each bug: the line, what goes wrong, and how to "
    "fix it. If the code is correct, answer only LGTM.",
)
REFACTORER = AgentSpec(
    role="refactorer",
    goal="Deliver the function with the review acted upon.",
    system_prompt="You fix Python code. Fix the bugs that the review names. If the review says "
    "LGTM, repeat the code. Answer with one Python code block that defines the whole function.",
)


class CodeReview(TeamTask):
    """Quality is tests passed, collaboration what the review led to, efficiency brevity."""

    name = "code_review"
    agents = (WRITER, REVIEWER, REFACTORER)
    observe_fixed = TeamTask.observe_single
    weights: ClassVar[Mapping[str, float]] = {
        "quality": 0.6,
        "collaboration": 0.3,
        "efficiency": 0.1,
    }
    solved = "solved"
    team_parts = ("collaboration",)
    options_type: ClassVar[type[Frozen]] = Options
    options: Options

    def problems(self, split: Split) -> Sequence[Problem]:
        return self.options.problems(split, BANK, sources.problems)

    def observe(self, state: Transcript, agent: str) -> str:
        problem = state.problem
        if agent == "writer":
            start = _given(problem, "starter" if "pytest" in problem.data else "signature")
            lines = join_code([problem.data.get("preamble", ""), start])
            return f"{_ask(problem)}\n\n```python\n{lines}\n```" if lines else _ask(problem)
        code = _code(state, "writer")
        shown = f"{_ask(problem)}\n\n```python\n{code or '# no code'}\n```"
        if agent == "reviewer":
            return f"{shown}\n\nWhich bugs does this code have?"
        review = state.last("reviewer").strip()[:MAX_REVIEW_CHARS]
        whole = "program" if "pytest" in problem.data else "function"
        return f"{shown}\n\nReview: {review}\n\nWrite the whole {whole}."

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        problem = state.problem
        draft, final = await asyncio.gather(
            *(self._outcome(state, agent, tools) for agent in ("writer", "refactorer"))
        )
        spoken = bool(state.by("refactorer"))
        last = final if spoken else draft
        floor = best_constant([expected for _, expected in _given(problem, "tests")])
        before, after = (
            beyond_chance(sum(outcome.passed), len(outcome.passed), floor)
            for outcome in (draft, last)
        )
        review = state.last("reviewer")
        acted = reward.collaboration(before, after, review, draft.code, final.code)
        return self.score(
            quality=after,
            collaboration=acted if spoken else 0.0,
            efficiency=reward.efficiency(after, last.code, _given(problem, "reference")),
            feedback=_feedback(draft, last) if spoken else draft.summary,
            tags=_tags(before, after, last),
        )

    def single(self) -> AgentSpec:
        return WRITER

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        if not (reference := _given(problem, "reference")):
            return None
        return _delivered(reference.rstrip("\n"))

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The reference and codes with one bug each, all in one layout."""
        if not (reference := _given(problem, "reference")):
            return ()
        return [
            _delivered(code) for code in (plain(reference), *flaws(reference, problem.id, FLAWED))
        ]

    async def _outcome(self, state: Transcript, agent: str, tools: Tools) -> Outcome:
        return await run_tests(state.problem, _code(state, agent), tools)


def _delivered(code: str) -> Mapping[str, str]:
    """What the team says where the writer's code stays as it is."""
    block = f"```python\n{code}\n```"
    return {"writer": block, "reviewer": "LGTM", "refactorer": block}


def _code(state: Transcript, agent: str) -> str:
    return extract_code(state.last(agent), _given(state.problem, "entry_point"))


def _given(problem: Problem, name: str) -> Any:
    """A field of the problem's data; '' where a problem with a pytest file has none."""
    return problem.data.get(name, "") if "pytest" in problem.data else problem.data[name]


def _ask(problem: Problem) -> str:
    """The problem with its one example, which is not among the tests."""
    if "pytest" in problem.data:
        return problem.prompt
    args, expected = problem.data["example"]
    call = show_call(problem.data["entry_point"], args)
    return f"{problem.prompt}\nExample: {call} returns {expected!r}."


def _feedback(draft: Outcome, final: Outcome) -> str:
    return f"Writer: {draft.summary} After the review: {final.summary}"


def _tags(before: float, after: float, last: Outcome) -> list[str]:
    """What to count about an episode."""
    tags = {
        "solved": bool(last.passed) and all(last.passed),
        "improved": after > before,
        "regressed": after < before,
        "no_code": not last.code,
        "syntax_error": any("SyntaxError" in f or "IndentationError" in f for f in last.failures),
    }
    return [tag for tag, holds in tags.items() if holds]
