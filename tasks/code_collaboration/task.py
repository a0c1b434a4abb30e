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
    errors,
    extract_code,
    join_code,
)

from . import prompts, sources
from .options import ROLES, Options
from .outcome import run_tests
from .program import AUX, HELPERS, Program, without_promise
from .samples import samples
from .schemes import SCHEMES
from .verdict import judged, judged_alone

BANK = Path(__file__).with_name("problems.jsonl")
HELPER = AgentSpec(
    role=ROLES[0],
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
REVIEWER = AgentSpec(
    role="reviewer",
    goal="Find what is wrong in the code, so that main can mend it.",
    system_prompt="You review the Python code of a team. Say in a few sentences what is wrong in "
    "the main function or in how it calls its helpers, and how to mend it.",
)
ALONE = AgentSpec(
    role="alone",
    goal="Write the function.",
    system_prompt="You are a Python programmer. Answer with one Python code block that defines the "
    "function, and nothing else.",
)
ALL = AgentSpec(
    role="alone",
    goal="Write all functions of the program.",
    system_prompt="You are a Python programmer. You write all functions of a program, each under "
    "its heading in a Python code block of its own.",
)
_GOAL = "Write the main function, which calls {all} and uses what they return."
_PROMPT = (
    "You are a Python programmer. Write only the main function. It calls the helper functions "
    "{all}, which other programmers write: do not define {any}. Answer with one Python code block "
    "that defines the main function, and nothing else."
)
"""Of main, where it has several helpers."""


def team_of(options: Options) -> tuple[AgentSpec, ...]:
    """The helpers, main, and the reviewer if there is one."""
    helpers, main = [HELPER], MAIN
    for role, aux in zip(ROLES[1 : options.helpers], HELPERS[1:], strict=False):
        said = {"goal": HELPER.goal, "system_prompt": HELPER.system_prompt}
        texts = {key: text.replace(AUX, aux) for key, text in said.items()}
        helpers.append(AgentSpec(role=role, **texts))
    if len(helpers) > 1:
        names = HELPERS[: len(helpers)]
        every = {"all": " and ".join(names), "any": " or ".join(names)}
        told = {"goal": _GOAL.format(**every), "system_prompt": _PROMPT.format(**every)}
        main = AgentSpec(role=MAIN.role, **told)
    return (*helpers, main, *([REVIEWER] if options.reviewer else []))


@dataclass(frozen=True, slots=True)
class Work:
    """The code that was taken from each answer so far, and how each turn that was told of went."""

    problem: Problem
    codes: tuple[tuple[str, str], ...] = ()
    results: tuple[str, ...] = ()

    def by(self, agent: str) -> tuple[str, ...]:
        """All codes of one agent, oldest first; '' for an answer without any."""
        return tuple(code for who, code in self.codes if who == agent)

    def last(self, agent: str) -> str:
        """The agent's latest code; '' if there is none."""
        return (self.by(agent) or ("",))[-1]

    @property
    def program(self) -> Program:
        """The latest code of a single helper and main."""
        return self.views(1)[0]

    def views(self, helpers: int) -> tuple[Program, ...]:
        """The latest code of each, as the program of each helper."""
        codes = [self.last(role) for role in ROLES[:helpers]]
        return Program.views(self.problem, codes, self.last(MAIN.role))


class CodeCollaboration(BaseTask[Work]):
    """A Dec-POMDP: all act at once and share one reward; or in order, by `options.acting`."""

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
    rubric = prompts.RUBRIC
    solved = "solved"
    schemes = SCHEMES
    team_parts = ("cooperation",)
    options: Options

    def asked_agents(self) -> tuple[AgentSpec, ...]:
        return team_of(self.options)

    def problems(self, split: Split) -> Sequence[Problem]:
        own = self.options
        found = own.problems(split, BANK, sources.problems, own.helpers)
        for name in HELPERS[: own.helpers]:
            if any(f"{name}_signature" not in problem.data for problem in found):
                raise errors.ConfigError(
                    f"bank {own.bank} has problems without a part for {name} ({name}_signature), "
                    f"and the team has {own.helpers} beside main: take options.bank=generated, or "
                    "lower options.helpers"
                )
        return found

    def reset(self, problem: Problem, seed: int) -> Work:
        return Work(problem)

    def to_act(self, state: Work) -> tuple[str, ...]:
        done = len(state.codes)
        for actors in self._turn() * self.options.turns:
            if done <= 0:
                return actors
            done -= len(actors)
        return ()

    def _turn(self) -> list[tuple[str, ...]]:
        """Who acts in one turn, step by step."""
        writers = (*ROLES[: self.options.helpers], MAIN.role)
        joint = self.options.acting == "joint"
        steps: list[tuple[str, ...]] = [writers] if joint else [(role,) for role in writers]
        return [*steps, (REVIEWER.role,), (MAIN.role,)] if self.options.reviewer else steps

    def observe(self, state: Work, agent: str) -> str:
        """The problem, the agent's part, and its own history.

        Main sees the helpers' code only where it acts after them.
        """
        own = self.options
        if agent == REVIEWER.role:
            written = [(role, state.last(role)) for role in (*ROLES[: own.helpers], MAIN.role)]
            return prompts.for_reviewer(state.problem, written, state.results)
        if agent == MAIN.role:
            task = prompts.for_main(state.problem, self._shown(state), own.helpers)
            last, said = (state.codes or (("", ""),))[-1]
            review = said if last == REVIEWER.role else ""
            return prompts.with_history(task, state.by(agent), state.results, review)
        task = prompts.for_helper(state.problem, HELPERS[ROLES.index(agent)])
        each = 2 if own.reviewer else 1  # main writes twice a turn where there is a reviewer
        return prompts.with_history(task, state.by(agent), state.results[each - 1 :: each])

    def _shown(self, state: Work) -> tuple[str, ...]:
        """The helpers' code where main sees it."""
        if self.options.acting == "joint":
            return ()
        return tuple(state.last(role) for role in ROLES[: self.options.helpers])

    def step(self, state: Work, actions: Mapping[str, str]) -> Work:
        codes: list[tuple[str, str]] = []
        for role, aux in zip(ROLES[: self.options.helpers], HELPERS, strict=False):
            if role in actions:
                codes.append((role, extract_code(actions[role], aux)))
        if MAIN.role in actions:
            codes.append((MAIN.role, self._of_main(state, actions[MAIN.role])))
        if REVIEWER.role in actions:
            codes.append((REVIEWER.role, actions[REVIEWER.role].strip()))
        return replace(state, codes=(*state.codes, *codes))

    def _of_main(self, state: Work, answer: str) -> str:
        """Main's code, without what its prompt showed it."""
        code = extract_code(answer, state.problem.data["entry_point"])
        shown = self._shown(state) or ("",) * self.options.helpers
        for aux, seen in zip(HELPERS, shown, strict=False):
            code = without_promise(code, seen, aux)
        return code

    def told(self, state: Work, score: Score) -> Work:
        """Once main has answered, how far they came, as `options.feedback` says."""
        said = prompts.result(score, self.options.feedback)
        if not said or (state.codes and state.codes[-1][0] != MAIN.role):
            return state
        return replace(state, results=(*state.results, said))

    async def evaluate(self, state: Work, tools: Tools) -> Score:
        parts, feedback, tags = await judged(
            state.problem, state.views(self.options.helpers), tools
        )
        return self.score(feedback=feedback, tags=tags, **parts)

    def single(self) -> AgentSpec:
        return ALONE

    def observe_single(self, problem: Problem) -> str:
        return prompts.for_one(problem)

    async def evaluate_single(self, state: Work, answer: str, tools: Tools) -> Score:
        """By the problem's tests alone."""
        code = extract_code(answer, state.problem.data["entry_point"])
        parts, feedback, tags = await judged_alone(state.problem, code, tools)
        return self.score(feedback=feedback, tags=tags, **parts)

    def fixed(self) -> AgentSpec:
        return ALL

    def observe_fixed(self, problem: Problem) -> str:
        return prompts.for_all(problem, self.options.helpers, self.options.reviewer)

    def delivered(self, state: Work) -> str:
        """The program of all."""
        return state.views(self.options.helpers)[-1].text

    async def unfit(self, problem: Problem, tools: Tools) -> str:
        """Of a data set's function with a test of its own, whose reference must pass it."""
        if "check" not in problem.data or "reference" not in problem.data:
            return ""
        code = join_code([problem.data["preamble"], problem.data["reference"]])
        found = await run_tests(problem, code, tools)
        return "" if found.solved else f"{found.passed} of {found.total} tests: {found.failure}"

    def gold(self, problem: Problem) -> Mapping[str, str] | None:
        return next(iter(self.graded(problem)), None)

    def graded(self, problem: Problem) -> Sequence[Mapping[str, str]]:
        """The gold codes, then codes without cooperation, without success, without a helper."""
        own = self.options
        roles = (*ROLES[: own.helpers], MAIN.role)
        said = {REVIEWER.role: "Nothing is wrong."} if own.reviewer else {}
        return [
            {**dict(zip(roles, map(prompts.block, codes), strict=True)), **said}
            for codes in samples(problem, own.helpers)
        ]
