"""What became of one code under the tests of its problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestry import Call, Problem, Tools, compare, join_code, show_call, show_value

_SHOWN_FAILURES = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """Verdicts by test, and prose on the first failures."""

    code: str
    passed: tuple[bool, ...]
    failures: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One or two sentences for judge and library."""
        if not self.code:
            return "The answer holds no code."
        count = f"The code passes {sum(self.passed)} of {len(self.passed)} tests."
        return " ".join([count, *dict.fromkeys(self.failures)][: 1 + _SHOWN_FAILURES])


async def run_tests(problem: Problem, code: str, tools: Tools) -> Outcome:
    """Runs a code on all tests of its problem; expected values stay out of its process."""
    if "pytest" in problem.data:
        return await _run_pytest(problem, code, tools)
    tests: Sequence[Any] = problem.data["tests"]
    if not code:
        return Outcome(code, (False,) * len(tests))
    name = problem.data["entry_point"]
    calls = [Call(args=tuple(args)) for args, _ in tests]
    whole = join_code([problem.data.get("preamble", ""), code])
    results = await tools.sandbox.run(whole, name, calls)
    passed, failures = [], []
    for (args, expected), result in zip(tests, results, strict=True):
        passed.append(result.verdict == "value" and compare(expected, result.value))
        if not passed[-1]:
            call = show_call(name, args)
            found = f"returned {show_value(result.value)}"
            found = found if result.verdict == "value" else f"failed: {result.why}"
            failures.append(f"{call} {found}, expected {show_value(expected)}.")
    return Outcome(code, tuple(passed), tuple(failures))


async def _run_pytest(problem: Problem, code: str, tools: Tools) -> Outcome:
    if not code:
        return Outcome(code, (False,))
    found = await tools.sandbox.pytest(code, problem.data["pytest"])
    passed, total = found.value or (0, 1)
    failures = () if passed == total else (f"{found.trace.strip() or found.why}.",)
    return Outcome(code, (True,) * passed + (False,) * (total - passed), failures)
