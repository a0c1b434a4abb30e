"""What became of a program under the tests of its problem; expected values stay on this side."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from orchestry import (
    Call,
    Limits,
    Problem,
    Tools,
    best_constant,
    compare,
    parse_code,
    shorten,
    show_call,
    show_value,
)

CONSTANTS = ("None", "True", "False", "0", "''", "[]")
"""What a data set's own test is tried with to see how far a constant answer comes."""
_TOLD = {
    "timeout": "no answer in time",
    "memory": "not enough memory",
    "output": "it returned too much",
}
"""What is told of a call by the sandbox's verdict on it."""
_ERRORS = {
    "no function": "it is not defined",
    "returned what can't": "it returned what can't be compared",
    "ended its process": "it ended its process",
}
"""What is told of an error that nothing raised, by how the sandbox's words on it start."""
_IN_TEST = {**_ERRORS, "no answer": _TOLD["timeout"], "returned more": _TOLD["output"]}
"""The same within a data set's own test, which hands on a call's words without the verdict."""
_CANDIDATE, _NO_VALUE = "candidate(", "the candidate gave no value: "
"""How the sandbox's report on a test names a call, and a call without a value."""
_TRIED = 50  # closing brackets that may end a call


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many tests passed, of how many, and the first failing call without its right answer."""

    passed: int
    total: int
    failure: str = ""
    detail: str = ""
    """The failure with all that was said of it, which may be the other agent's words."""

    @property
    def solved(self) -> bool:
        """Whether all passed."""
        return 0 < self.total == self.passed


async def run_tests(
    problem: Problem,
    code: str,
    tools: Tools,
    limits: Limits | None = None,
    entry_point: str | None = None,
) -> Outcome:
    """Runs a program on all tests of its problem, in one run of the sandbox.

    `entry_point` names another function of the program to be tested in place of the problem's.
    """
    name = entry_point or problem.data["entry_point"]
    if "check" in problem.data:
        return await _run_check(problem, code, name, tools, limits)
    tests: Sequence[Any] = problem.data["tests"]
    calls = [Call(args=tuple(args)) for args, _ in tests]
    results = await tools.sandbox.run(code, name, calls, limits)
    failures: list[tuple[str, str]] = []
    for (args, expected), result in zip(tests, results, strict=True):
        if result.verdict == "value" and compare(expected, result.value):
            continue
        call = show_call(name, args)
        if result.verdict == "value":
            failures.append((f"{call} wrongly returned {show_value(result.value)}", ""))
        else:
            told = plain(result.verdict, result.why)
            failures.append((f"{call} failed: {told}", _first_line(result.why)))
    return Outcome(len(tests) - len(failures), len(tests), *(failures or [("", "")])[0])


async def chance(problem: Problem, tools: Tools) -> int:
    """How many tests the best constant answer passes.

    Of a data set's own test, which holds no list of expected values, the best of CONSTANTS.
    """
    if "check" in problem.data:
        name = problem.data["entry_point"]
        codes = [f"def {name}(*args, **named):\n    return {value}\n" for value in CONSTANTS]
        tried = await asyncio.gather(*(_run_check(problem, code, name, tools) for code in codes))
        return max(outcome.passed for outcome in tried)
    return best_constant([expected for _, expected in problem.data["tests"]])


async def _run_check(
    problem: Problem, code: str, name: str, tools: Tools, limits: Limits | None = None
) -> Outcome:
    """Runs the test code of HumanEval, `check(candidate)`, beside the program."""
    result = await tools.sandbox.check(code, name, problem.data["check"], limits)
    if result.verdict != "value":
        return Outcome(
            0, 1, f"{name} failed: {plain(result.verdict, result.why)}", _first_line(result.why)
        )
    passed, total = result.value
    if passed == total:
        return Outcome(passed, total)
    error = _first_line(result.why.partition(_NO_VALUE)[2])
    return Outcome(passed, total, unasserted(name, result.why), error)


def unasserted(name: str, why: str) -> str:
    """What went wrong in a data set's own test, without the assert, which says what is right."""
    error = why.partition(_NO_VALUE)[2]
    went = f"failed: {_named(error, _IN_TEST)}" if error else "returned a wrong value"
    start = why.find(_CANDIDATE)
    ends = (place for place, char in enumerate(why) if char == ")" and place > start >= 0)
    for end in islice(ends, _TRIED):
        call = why[start : end + 1]
        if parse_code(call) is not None:
            return f"{shorten(name + call.removeprefix(_CANDIDATE.rstrip('(')))} {went}"
    return f"{name} {went}"


def plain(verdict: str, why: str) -> str:
    """Why a call gave no value, without quoting the code.

    An exception is told by its built-in type alone. Its message, the names of the code's own
    exceptions and lines of the joined program could carry what one agent has to say to the other.
    """
    return _TOLD.get(verdict) or _named(why, _ERRORS)


def _named(why: str, errors: Mapping[str, str]) -> str:
    """The built-in type of an exception, or which of the other errors it is, by their starts."""
    error = _first_line(why)
    kind = getattr(builtins, error.partition(":")[0].partition(" ")[0], None)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return kind.__name__
    return next((told for start, told in errors.items() if error.startswith(start)), "an exception")


def _first_line(why: str) -> str:
    """What went wrong, without the traceback: it would show one agent's code to the other."""
    return why.strip().partition("\n")[0][:120]
