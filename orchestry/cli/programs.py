"""Programs with tests, one JSON object a line: read, judged by their calls, reported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from orchestry import compare
from orchestry.core.errors import ConfigError, reason
from orchestry.core.types import Call, CallResult, Limits, Sandbox
from orchestry.sandbox.inside.tagged import Untaggable, dumps
from orchestry.sandbox.redact import Redactor
from orchestry.task.code import shorten, show_value

GRAVITY = ("timeout", "memory", "error", "fail", "pass")
"""A program's verdict is the gravest of its calls'."""
SHAPE = '{"id", "code", "entry_point", "tests": [[args, expected], ...]}, "wall_s" if wanted'
_KEYS: dict[str, tuple[type, ...]] = {
    "id": (str, int),
    "code": (str,),
    "entry_point": (str,),
    "tests": (list,),
}
_NAMES = {str: "a string", int: "an integer", list: "a list"}
_MAX_SHOWN = 80
_MAX_WHY = 400
_shown = partial(show_value, most=_MAX_SHOWN)


@dataclass(frozen=True, slots=True)
class Program:
    """One line: code, the function that is called, and what each call should return."""

    id: str | int
    code: str
    entry_point: str
    tests: tuple[tuple[list[Any], Any], ...]
    limits: Limits


def read(lines: Iterable[bytes], name: str, limits: Limits, *, cpu: bool) -> Iterator[Program]:
    """The programs of a file, one at a time; blank lines and unknown keys are passed over.

    A line's `wall_s` replaces that of `limits`. It then is the only time limit, unless `cpu` says
    that the user has chosen one of CPU time. Raises ConfigError at a bad line.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _program(line, limits, cpu=cpu)
        except ValueError as error:
            raise ConfigError(f"{name}:{number}: {error}: each line is {SHAPE}") from None


def _program(line: bytes, limits: Limits, *, cpu: bool) -> Program:
    try:
        raw = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({reason(error)})") from None
    if not isinstance(raw, dict):
        raise ValueError("no JSON object")
    for key, kinds in _KEYS.items():
        wanted = " or ".join(_NAMES[kind] for kind in kinds)
        if key not in raw:
            raise ValueError(f"{key} is missing: give {wanted}")
        if type(raw[key]) not in kinds:
            raise ValueError(f"{key} is {_shown(raw[key])}: give {wanted}")
    tests = tuple(_test(test, number) for number, test in enumerate(raw["tests"], 1))
    given = raw.get("wall_s")
    own = limits if given is None else _limits(given, limits, cpu=cpu)
    return Program(raw["id"], raw["code"], raw["entry_point"], tests, own)


def _test(raw: Any, number: int) -> tuple[list[Any], Any]:
    if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[0], list):
        raise ValueError(f"test {number} is {_shown(raw)}: give [[arguments...], expected]")
    try:
        dumps(raw[0])
    except Untaggable as error:
        raise ValueError(f"test {number} has arguments {error}: flatten them") from None
    return raw[0], raw[1]


def _limits(wall_s: Any, limits: Limits, *, cpu: bool) -> Limits:
    if type(wall_s) not in (int, float):
        raise ValueError(f"wall_s is {_shown(wall_s)}: give seconds")
    changed = {"wall_s": wall_s} if cpu else {"wall_s": wall_s, "cpu_s": _cpu_s(wall_s)}
    try:
        return Limits(**{**limits.model_dump(), **changed})
    except ValidationError as error:
        raise ValueError(reason(error)) from None


def _cpu_s(wall_s: float) -> float:
    """CPU time that leaves the wall clock as the limit: a call may use half of a run's."""
    return min(2 * wall_s, 3600.0)


async def judge(program: Program, sandbox: Sandbox) -> dict[str, Any]:
    """Runs a program's tests; its report, as the command prints it."""
    calls = [Call(args=tuple(args)) for args, _ in program.tests]
    results: Sequence[CallResult] = []
    if calls:
        results = await sandbox.run(program.code, program.entry_point, calls, program.limits)
    return report(program, results)


def report(program: Program, results: Sequence[CallResult]) -> dict[str, Any]:
    """The verdict on a program, and in words the first call that earned it."""
    pairs = zip(results, program.tests, strict=True)
    marks = [_mark(result, expected) for result, (_, expected) in pairs]
    verdict = min(marks, key=GRAVITY.index, default="error")
    why = "no tests: give at least one [[arguments...], expected]"
    if marks:
        why = "" if verdict == "pass" else _why(program, results, marks.index(verdict))
    return {
        "id": program.id,
        "verdict": verdict,
        "passed": marks.count("pass"),
        "total": len(marks),
        "why": why,
    }


def _mark(result: CallResult, expected: Any) -> str:
    if result.verdict == "value":
        return "pass" if compare(expected, result.value) else "fail"
    return "error" if result.verdict == "output" else result.verdict


def _why(program: Program, results: Sequence[CallResult], index: int) -> str:
    """One line without a secret: call, what came of it, what was expected."""
    result, (args, expected) = results[index], program.tests[index]
    redactor = Redactor(os.environ)
    given = ", ".join(_shown(redactor.value(arg)) for arg in args)
    end = f": {result.why}"
    if result.verdict == "value":
        got = _shown(redactor.value(result.value))
        end = f" returned {got}, expected {_shown(redactor.value(expected))}"
    text = f"test {index + 1}: {program.entry_point}({shorten(given, 2 * _MAX_SHOWN)}){end}"
    return redactor.text(" ".join(text.split()), _MAX_WHY)
