"""`orchestry sandbox run`: runs the programs of a file in the sandbox; one outcome per line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import OUTPUT, SAFETY, flag, option, spread
from orchestry.core.errors import ConfigError, reason

if TYPE_CHECKING:
    from orchestry.core.types import CallResult, Limits, Sandbox

WINDOW = 128
"""Programs in memory at once, including finished ones that wait for an earlier one."""

Reports = asyncio.Queue["asyncio.Task[dict[str, Any]] | None"]
"""Reports to come, in order; None comes last."""


GRAVITY = ("timeout", "memory", "error", "fail", "pass")
"""A program gets the gravest outcome of its calls."""
_SHAPE = '{"id", "code", "entry_point", "tests": [[args, expected], ...]}, "wall_s" if wanted'
_KEYS: dict[str, tuple[type, ...]] = {
    "id": (str, int),
    "code": (str,),
    "entry_point": (str,),
    "tests": (list,),
}
_NAMES = {str: "a string", int: "an integer", list: "a list"}
_MAX_SHOWN = 80
_MAX_WHY = 400
LIMITS = "Limits"
app = App("Run untrusted programs, and see how this machine confines them.")


class Given(TypedDict):
    """The limits given as options."""

    wall_s: Annotated[float | None, option(LIMITS, "Seconds a program may take.  [6]", metavar="S")]
    cpu_s: Annotated[
        float | None,
        option(LIMITS, "Seconds of CPU time; one call may use half.  [2]", metavar="S"),
    ]
    memory_mb: Annotated[int | None, option(LIMITS, "MiB of address space.  [256]", metavar="MB")]
    output_kb: Annotated[
        int | None,
        option(
            LIMITS, "KiB that a program's calls return and raise together.  [256]", metavar="KB"
        ),
    ]
    processes: Annotated[
        int | None, option(LIMITS, "Threads, the first one included.  [16]", metavar="N")
    ]
    recursion: Annotated[int | None, option(LIMITS, "Nested calls.  [1000]", metavar="N")]


_Level = Annotated[
    Literal["1", "2", "3", "4"] | None,
    option(SAFETY, "Confine at this level only, or fail; for tests.  [the best there is]"),
]


@app.command("run")
@spread
def _run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines.")],
    level: _Level = None,
    allow_unsafe_code: Annotated[
        bool,
        flag(SAFETY, "Accept level 4, which limits but does not confine.", "--allow-unsafe-code"),
    ] = False,
    verbose: Annotated[
        bool, flag(OUTPUT, "Tracebacks of Orchestry's own errors.", "--verbose")
    ] = False,
    **given: Unpack[Given],
) -> int:
    """Test the programs in FILE, one JSON object per line; "-" is stdin.

    ```text
    In:  {"id", "code", "entry_point", "tests": [[args, expected], ...],
          "wall_s"}
    Out: {"id", "verdict", "passed", "total", "why"}
    ```

    A test calls the entry point with the list of arguments. Types must match: True is not 1, and a
    list is not a tuple. JSON has no tuples, so a program that returns one can't pass. Floats agree
    within 1e-9.

    The verdict is "pass" if all tests passed, else the gravest outcome of its calls: "timeout",
    "memory", "error" (also for too much output, or no tests), "fail". `why` describes the first
    call with that outcome. Verdicts are printed in the order of the lines, as soon as they are
    known. Programs run on all cores.

    `wall_s` is optional. It is then the program's only time limit, unless `--cpu-s` is given. Other
    keys are ignored.

    A bad line is named on stderr, with exit code 2. A file is checked as a whole before anything
    runs. From stdin or a pipe, lines before the bad one still get their verdicts, and no line after
    it is read. The level of confinement is printed once on stderr.

    Exit codes: 0 for any verdicts, 1 the sandbox failed, 2 bad input, 130 interrupted.
    """
    from orchestry.sandbox import open_sandbox

    limits = _limits({name: value for name, value in given.items() if value is not None})
    cpu = given["cpu_s"] is not None
    _check(file, limits, cpu=cpu)
    sandbox = open_sandbox(limits, int(level) if level else None, allow_unsafe=allow_unsafe_code)
    asyncio.run(_play(_programs(file, limits, cpu=cpu), sandbox))
    return 0


def _limits(given: dict[str, Any]) -> Limits:
    from pydantic import ValidationError

    from orchestry.core.types import Limits

    try:
        return Limits(**given)
    except ValidationError as error:
        flag = str(error.errors()[0]["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{flag}: {reason(error).partition(': ')[2]}") from None


def _check(file: str, limits: Limits, *, cpu: bool) -> None:
    """Raises ConfigError for bad input that can be found before anything runs."""
    path = Path(file)
    if file == "-" and sys.stdin is None:
        raise ConfigError("stdin is closed: give a file of JSON lines, or pipe them in")
    if file != "-" and (path.is_file() or path.is_dir() or not path.exists()):
        for _ in _programs(file, limits, cpu=cpu):  # not for a pipe, which can be read only once
            pass


def _programs(file: str, limits: Limits, *, cpu: bool) -> Iterator[Program]:
    if file == "-":
        yield from read_programs(sys.stdin.buffer, "stdin", limits, cpu=cpu)
        return
    try:
        with Path(file).open("rb") as lines:
            yield from read_programs(lines, file, limits, cpu=cpu)
    except OSError as error:
        raise ConfigError(
            f"{file or repr(file)} can't be read ({error.strerror}): give a file of JSON lines, "
            "or - for stdin"
        ) from None


async def _play(programs: Iterator[Program], opened: Any) -> None:
    """Prints the reports in order. An error of `programs` is raised after all earlier reports."""
    async with opened as sandbox:
        typer.echo(f"sandbox level {sandbox.level}", err=True)
        room = asyncio.Semaphore(WINDOW)
        reports: Reports = asyncio.Queue()
        feeder = asyncio.create_task(_feed(programs, sandbox, reports, room))
        try:
            told = 0
            while (task := await reports.get()) is not None:
                typer.echo(json.dumps(await task))
                room.release()
                told += 1
            await feeder
            if not told:
                typer.echo("no program was given, so there are no verdicts", err=True)
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, *_cancelled(reports), return_exceptions=True)


def _cancelled(reports: Reports) -> Iterator[asyncio.Task[dict[str, Any]]]:
    """Cancels the tasks that nobody will wait for."""
    while not reports.empty():
        if (task := reports.get_nowait()) is not None:
            task.cancel()
            yield task


async def _feed(
    programs: Iterator[Program], sandbox: Sandbox, reports: Reports, room: asyncio.Semaphore
) -> None:
    """Starts programs while there is room; signals its end, also after an error."""
    try:
        while (program := await asyncio.to_thread(next, programs, None)) is not None:
            await room.acquire()
            reports.put_nowait(asyncio.create_task(judge(program, sandbox)))
    finally:
        reports.put_nowait(None)


# --- programs with tests: read, judged by their calls, reported -----------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """One line: code, the function to call, and what each call should return."""

    id: str | int
    code: str
    entry_point: str
    tests: tuple[tuple[list[Any], Any], ...]
    limits: Limits


def read_programs(
    lines: Iterable[bytes], name: str, limits: Limits, *, cpu: bool
) -> Iterator[Program]:
    """The programs of a file, one at a time; blank lines and unknown keys are ignored.

    A line's `wall_s` replaces that of `limits` and is then the only time limit, unless `cpu` is
    true (the user set a CPU limit). Raises ConfigError at a bad line.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _program(line, limits, cpu=cpu)
        except ValueError as error:
            raise ConfigError(f"{name}:{number}: {error}: each line is {_SHAPE}") from None


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
    own = limits if given is None else _own_limits(given, limits, cpu=cpu)
    return Program(raw["id"], raw["code"], raw["entry_point"], tests, own)


def _test(raw: Any, number: int) -> tuple[list[Any], Any]:
    from orchestry.sandbox.inside.tagged import Untaggable, dumps

    if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[0], list):
        raise ValueError(f"test {number} is {_shown(raw)}: give [[arguments...], expected]")
    try:
        dumps(raw[0])
    except Untaggable as error:
        raise ValueError(f"test {number} has arguments {error}: flatten them") from None
    return raw[0], raw[1]


def _own_limits(wall_s: Any, limits: Limits, *, cpu: bool) -> Limits:
    from pydantic import ValidationError

    from orchestry.core.types import Limits

    if type(wall_s) not in (int, float):
        raise ValueError(f"wall_s is {_shown(wall_s)}: give seconds")
    changed = {"wall_s": wall_s} if cpu else {"wall_s": wall_s, "cpu_s": _cpu_s(wall_s)}
    try:
        return Limits(**{**limits.model_dump(), **changed})
    except ValidationError as error:
        raise ValueError(reason(error)) from None


def _cpu_s(wall_s: float) -> float:
    """CPU time large enough that the wall clock is the limit; a call may use half of it."""
    return min(2 * wall_s, 3600.0)


async def judge(program: Program, sandbox: Sandbox) -> dict[str, Any]:
    """Runs a program's tests; returns the report that the command prints."""
    from orchestry.core.types import Call

    calls = [Call(args=tuple(args)) for args, _ in program.tests]
    results: Sequence[CallResult] = []
    if calls:
        results = await sandbox.run(program.code, program.entry_point, calls, program.limits)
    return report(program, results)


def report(program: Program, results: Sequence[CallResult]) -> dict[str, Any]:
    """The outcome of a program, and a description of the first call that caused it."""
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
    from orchestry.task.code import compare

    if result.verdict == "value":
        return "pass" if compare(expected, result.value) else "fail"
    return "error" if result.verdict == "output" else result.verdict


def _why(program: Program, results: Sequence[CallResult], index: int) -> str:
    """One line without secrets: the call, its result and the expected value."""
    from orchestry.core.secrets import Redactor
    from orchestry.task.code import shorten

    result, (args, expected) = results[index], program.tests[index]
    redactor = Redactor(os.environ)
    given = ", ".join(_shown(redactor.value(arg)) for arg in args)
    end = f": {result.why}"
    if result.verdict == "value":
        got = _shown(redactor.value(result.value))
        end = f" returned {got}, expected {_shown(redactor.value(expected))}"
    text = f"test {index + 1}: {program.entry_point}({shorten(given, 2 * _MAX_SHOWN)}){end}"
    return redactor.text(" ".join(text.split()), _MAX_WHY)


def _shown(value: Any) -> str:
    from orchestry.task.code import show_value

    return show_value(value, most=_MAX_SHOWN)
