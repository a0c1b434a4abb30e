"""Scores a program: runs its tests, then its halves apart, and says what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from orchestry import Limits, Problem, Tools, beyond_chance

from . import partners, reward
from .outcome import Outcome, chance, run_tests
from .program import AUX, Program, defined
from .schemes import Scheme
from .usage import usage_of

Verdict = tuple[Mapping[str, float], str, list[str]]
"""The parts of the score, feedback and tags."""


async def judged(problem: Problem, program: Program, tools: Tools) -> Verdict:
    """What a team's program is worth."""
    name = problem.data["entry_point"]
    outcome, floor = Outcome(0, 0), 0
    if defined(program.main, name):
        outcome, floor = await asyncio.gather(
            run_tests(problem, program.text, tools), chance(problem, tools)
        )
    passed = beyond_chance(outcome.passed, outcome.total, floor)
    usage = usage_of(program.main, name)
    objection = reward.objection(program, name, usage)
    cooperation = 0.0
    if passed and not objection and partners.known(problem):
        halves = await partners.halves(problem, program, passed, floor, tools)
        cooperation, objection = reward.partnership(passed, *halves)
    elif passed and not objection:
        cooperation, objection = await _cooperation(problem, program, floor, outcome, tools)
    parts = {
        "structure": reward.structure(program, name),
        "syntax": reward.syntax(program),
        "tests": passed * cooperation,
        "cooperation": cooperation,
    }
    feedback = _feedback(program, name, outcome, objection)
    way = usage.scheme if cooperation or not passed else "none"
    return parts, feedback, _tags(program, name, outcome, cooperation, way, usage.shadowed)


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
        return 0.0, "aux alone passes as many tests as the two together"
    return 0.0, "the tests pass as well with a stub in place of aux"


async def _played(
    problem: Problem, program: Program, tools: Tools, limits: Limits | None
) -> list[Outcome]:
    """The honest run, one with each stub, and one of aux alone."""
    texts = (program.text, *program.stubbed())
    runs = [run_tests(problem, text, tools, limits) for text in texts]
    return await asyncio.gather(*runs, run_tests(problem, program.text, tools, limits, AUX))


def _feedback(program: Program, name: str, outcome: Outcome, objection: str) -> str:
    """First what the agents may be told, without code; then what was taken from their answers."""
    lacking = [
        f"The {role} answer defines no {wanted}."
        for role, code, wanted in (("helper's", program.helper, AUX), ("main", program.main, name))
        if not defined(code, wanted)
    ]
    tried = [f"The program passes {outcome.passed} of {outcome.total} tests."]
    failure = [f"First failure: {outcome.failure}."] if outcome.failure else []
    summary = " ".join([*lacking, *(tried if outcome.total else []), *failure])
    against = [f"No cooperation: {objection}."] if objection else []
    whole = [f"First failure in full: {outcome.detail}"] if outcome.detail else []
    taken = [
        f"Code taken from {role}:\n{code or '(none)'}"
        for role, code in (("helper", program.helper), ("main", program.main))
    ]
    return "\n\n".join([summary, *against, *whole, *taken])


def _tags(
    program: Program, name: str, outcome: Outcome, cooperation: float, way: Scheme, shadowed: bool
) -> list[str]:
    """What to count about an episode."""
    codes = [code for code in (program.helper, program.main) if code]
    tags = {
        "solved": outcome.solved,
        "cooperates": cooperation > 0.0,
        "no_helper": defined(program.helper, AUX) is None,
        "no_main": defined(program.main, name) is None,
        "syntax_error": not all(map(reward.is_valid, codes)),
        "shadowed": shadowed,
        f"scheme_{way}": defined(program.main, name) is not None,
    }
    return [tag for tag, holds in tags.items() if holds]
