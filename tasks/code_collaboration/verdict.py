"""Scores a program: runs its tests, then its halves apart, and says what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestry import Limits, Problem, Tools, beyond_chance

from . import partners, reward
from .options import ROLES
from .outcome import Outcome, chance, run_tests
from .program import Program, defined
from .schemes import Scheme
from .usage import usage_of

Verdict = tuple[Mapping[str, float], str, list[str]]
"""The parts of the score, feedback and tags."""


@dataclass(frozen=True, slots=True)
class Half:
    """How main works with one helper: the cooperation, what is against it, and the way; `novel`
    names one that is none of the four schemes, nor that of the problem's own solution."""

    cooperation: float
    objection: str
    way: Scheme
    shadowed: bool
    novel: str


async def judged(problem: Problem, views: Sequence[Program], tools: Tools) -> Verdict:
    """What a team's program is worth; `views` are the same program as that of each helper.

    The cooperation is that with the helper with whom it is the least.
    """
    name = problem.data["entry_point"]
    outcome, floor = await _tested(problem, views[-1], tools)
    passed = beyond_chance(outcome.passed, outcome.total, floor)
    found = [await _half(problem, view, passed, floor, outcome, tools) for view in views]
    least = min(found, key=lambda half: half.cooperation)
    parts = {
        "structure": reward.structure(views, name),
        "syntax": reward.syntax(views),
        "tests": passed * least.cooperation,
        "cooperation": least.cooperation,
    }
    feedback = _feedback(views, name, outcome, least.objection)
    return parts, feedback, _tags(views, name, outcome, found)


async def judged_alone(problem: Problem, code: str, tools: Tools) -> Verdict:
    """What the code of one who wrote the whole function is worth, by the same tests."""
    name = problem.data["entry_point"]
    outcome, floor = await _tested(problem, Program.of(problem, "", code), tools)
    parts = {
        "structure": float(defined(code, name) is not None),
        "syntax": float(reward.is_valid(code)),
        "tests": beyond_chance(outcome.passed, outcome.total, floor),
    }
    holds = {
        "solved": outcome.solved,
        "no_main": not parts["structure"],
        "syntax_error": bool(code) and not parts["syntax"],
    }
    tried = f"The program passes {outcome.passed} of {outcome.total} tests."
    said = tried if outcome.total else f"The answer defines no {name}."
    failure = f" First failure: {outcome.failure}." if outcome.failure else ""
    taken = f"Code taken from it:\n{code or '(none)'}"
    return parts, f"{said}{failure}\n\n{taken}", [tag for tag, held in holds.items() if held]


async def _tested(problem: Problem, program: Program, tools: Tools) -> tuple[Outcome, int]:
    """What became of a program under the tests, and how many the best constant passes."""
    if not defined(program.main, problem.data["entry_point"]):
        return Outcome(0, 0), 0
    return await asyncio.gather(run_tests(problem, program.text, tools), chance(problem, tools))


async def _half(
    problem: Problem, view: Program, passed: float, floor: int, outcome: Outcome, tools: Tools
) -> Half:
    name = problem.data["entry_point"]
    usage = usage_of(view.main, name, view.name)
    objection = reward.objection(view, name, usage)
    cooperation = 0.0
    if passed and not objection and partners.known(problem):
        halves = await partners.halves(problem, view, passed, floor, tools)
        cooperation, objection = reward.partnership(passed, *halves, view.name)
    elif passed and not objection:
        cooperation, objection = await _cooperation(problem, view, floor, outcome, tools)
    way = usage.scheme if cooperation or not passed else "none"
    gold = usage_of(problem.data.get("gold_main", ""), name, view.name)
    novel = usage.novel if cooperation and usage.novel != gold.novel else ""
    return Half(cooperation, objection, way, usage.shadowed, novel)


async def _cooperation(
    problem: Problem, program: Program, floor: int, outcome: Outcome, tools: Tools
) -> tuple[float, str]:
    """What the tests say of cooperation, and what against it.

    The program is run as it is, with each stub, and with aux alone in the place of main; all under
    the same limits, so that a main that idles until only an honest run is given the time earns
    nothing by it. Where short limits cost the honest run tests, all are run under the run's own.
    """
    honest, *others = await _played(problem, program, tools, partners.BRISK)
    if honest.passed < outcome.passed:
        honest, *others = await _played(problem, program, tools, None)
    whole, *rest = (beyond_chance(o.passed, o.total, floor) for o in (honest, *others))
    earned = reward.cooperation(whole, rest)
    if earned:
        return earned, ""
    *stubbed, alone = rest
    if alone >= max(stubbed):
        return 0.0, f"{program.name} alone passes as many tests as the two together"
    return 0.0, f"the tests pass as well with a stub in place of {program.name}"


async def _played(
    problem: Problem, program: Program, tools: Tools, limits: Limits | None
) -> list[Outcome]:
    """The honest run, one with each stub, and one of aux alone."""
    texts = (program.text, *program.stubbed())
    runs = [run_tests(problem, text, tools, limits) for text in texts]
    return await asyncio.gather(
        *runs, run_tests(problem, program.text, tools, limits, program.name)
    )


def _feedback(views: Sequence[Program], name: str, outcome: Outcome, objection: str) -> str:
    """First what the agents may be told, without code; then what was taken from their answers."""
    main = views[0].main
    written = [(role, view.helper, view.name) for role, view in zip(ROLES, views, strict=False)]
    wanted = [*((f"{role}'s", code, aux) for role, code, aux in written), ("main", main, name)]
    lacking = [
        f"The {role} answer defines no {one}."
        for role, code, one in wanted
        if not defined(code, one)
    ]
    tried = [f"The program passes {outcome.passed} of {outcome.total} tests."]
    failure = [f"First failure: {outcome.failure}."] if outcome.failure else []
    summary = " ".join([*lacking, *(tried if outcome.total else []), *failure])
    against = [f"No cooperation: {objection}."] if objection else []
    whole = [f"First failure in full: {outcome.detail}"] if outcome.detail else []
    taken = [
        f"Code taken from {role}:\n{code or '(none)'}"
        for role, code in (*((role, code) for role, code, _ in written), ("main", main))
    ]
    return "\n\n".join([summary, *against, *whole, *taken])


def _tags(
    views: Sequence[Program], name: str, outcome: Outcome, found: Sequence[Half]
) -> list[str]:
    """What to count about an episode."""
    main = views[0].main
    codes = [code for code in (*(view.helper for view in views), main) if code]
    tags = {
        "solved": outcome.solved,
        "cooperates": all(half.cooperation > 0.0 for half in found),
        "no_helper": any(defined(view.helper, view.name) is None for view in views),
        "no_main": defined(main, name) is None,
        "syntax_error": not all(map(reward.is_valid, codes)),
        "shadowed": any(half.shadowed for half in found),
        **{f"scheme_{half.way}": defined(main, name) is not None for half in found},
        **{f"novel_{half.novel}": bool(half.novel) for half in found},
    }
    return [tag for tag, holds in tags.items() if holds]
