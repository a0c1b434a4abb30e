"""Code collaboration: a helper writes aux, a main programmer the function that calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from orchestry import (
    AgentSpec,
    BaseTask,
    Frozen,
    Problem,
    Score,
    Split,
    Tools,
    extract_code,
)

from . import prompts, sources
from .options import Options
from .program import AUX, Program, without_promise
from .samples import samples
from .verdict import judged

BANK = Path(__file__).with_name("problems.jsonl")
HELPER = AgentSpec(
    role="helper",
    goal="Write the helper function aux, which the main function is to call.",
    system_prompt="You are a Python programmer. Write only the helper function aux, which another "
    "programmer calls. Answer with one Python code block that defines aux, and nothing else.",
)
MAIN = AgentSpec(
    role="main",
    goal="Write the main function, which calls aux and uses what it returns.",
    system_prompt="You are a Python programmer. Write only the main function. It calls the helper "
    "function aux, which another programmer writes: do not define aux. Answer with one Python code "
    "block that defines the main function, and nothing else.",
)


@dataclass(frozen=True, slots=True)
class Work:
    """The code that was taken from each answer so far, and how each turn that was told of went."""

    problem: Problem
    codes: tuple[tuple[str, str], ...] = ()
    results: tuple[str, ...] = ()

    def by(self, agent: str) -> tuple[str, ...]:
        """All codes of one agent, oldest first; '' for an answer without any."""
        return tuple(code for who, code in self.codes if who == agent)

    @property
    def program(self) -> Program:
        """The latest code of each."""
        helper, main = ((self.by(spec.role) or ("",))[-1] for spec in (HELPER, MAIN))
        return Program.of(self.problem, helper, main)


class CodeCollaboration(BaseTask[Work]):
    """A Dec-POMDP: both act at once and share one reward; or in order, by `options.acting`."""

    name = "code_collaboration"
    agents = (HELPER, MAIN)
    weights: ClassVar[Mapping[str, float]] = {
        "structure": 0.25,
        "syntax": 0.25,
        "tests": 0.25,
        "cooperation": 0.25,
    }
    options_type: ClassVar[type[Frozen]] = Options
    judged = False
    solved = "solved"
    options: Options

    def problems(self, split: Split) -> Sequence[Problem]:
        return self.options.problems(split, BANK, sources.problems)

    def reset(self, problem: Problem, seed: int) -> Work:
        return Work(problem)

    def to_act(self, state: Work) -> tuple[str, ...]:
        turns, moved = divmod(len(state.codes), len(self.agents))
        if turns >= self.options.turns:
            return ()
        roles = tuple(spec.role for spec in self.agents)
        return roles if self.options.acting == "joint" else (roles[moved],)

    def observe(self, state: Work, agent: str) -> str:
        """The problem, the agent's part, and its own history.

        Main sees the helper's code only where it acts after the helper.
        """
        task = (
            prompts.for_helper(state.problem)
            if agent == HELPER.role
            else prompts.for_main(state.problem, *self._shown(state))
        )
        return prompts.with_history(task, state.by(agent), state.results)

    def _shown(self, state: Work) -> tuple[str, ...]:
        """The helper's code where main sees it."""
        return state.by(HELPER.role)[-1:] if self.options.acting == "sequential" else ()

    def step(self, state: Work, actions: Mapping[str, str]) -> Work:
        codes: list[tuple[str, str]] = []
        if HELPER.role in actions:
            codes.append((HELPER.role, extract_code(actions[HELPER.role], AUX)))
        if MAIN.role in actions:
            code = extract_code(actions[MAIN.role], state.problem.data["entry_point"])
            codes.append((MAIN.role, without_promise(code, *self._shown(state))))
        return replace(state, codes=(*state.codes, *codes))

    def told(self, state: Work, score: Score) -> Work:
        """Once both have answered, how far they came, as `options.feedback` says."""
        said = prompts.result(score, self.options.feedback)
        if not said or len(state.codes) % len(self.agents):
            return state
        return replace(state, results=(*state.results, said))

    async def evaluate(self, state: Work, tools: Tools) -> Score:
        parts, feedback, tags = await judged(state.problem, state.program, tools)
        return self.score(feedback=feedback, tags=tags, **parts)

    def delivered(self, state: Work) -> str:
        """The program of both."""
        return state.program.text

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        return next(iter(self.graded(problem)), None)

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold pair, then pairs without cooperation, without success, without a helper."""
        return [
            {HELPER.role: prompts.block(helper), MAIN.role: prompts.block(main)}
            for helper, main in samples(problem)
        ]
