"""`orchestry sandbox run`: runs programs of a file in the sandbox, a verdict a line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from orchestry.cli.groups import Group
from orchestry.cli.programs import Program, judge, read
from orchestry.core.errors import ConfigError, reason
from orchestry.core.types import Limits, Sandbox
from orchestry.sandbox import open_sandbox

WINDOW = 128
"""Programs in memory at once, those whose verdict waits for an earlier one included."""

Reports = asyncio.Queue["asyncio.Task[dict[str, Any]] | None"]
"""Reports to come, in order; None comes last."""


@click.group(cls=Group)
def command() -> None:
    """Run untrusted programs, and see how this machine confines them."""


@command.command("run")
@click.argument("file", metavar="FILE")
@click.option("--wall-s", type=float, metavar="S", help="Seconds a program may take.  [6]")
@click.option(
    "--cpu-s",
    type=float,
    metavar="S",
    help="Seconds of CPU time; one call may use half.  [2]",
)
@click.option("--memory-mb", type=int, metavar="MB", help="MiB of address space.  [256]")
@click.option("--output-kb", type=int, metavar="KB", help="KiB of one call's value.  [256]")
@click.option("--processes", type=int, metavar="N", help="Threads, the first one included.  [16]")
@click.option("--recursion", type=int, metavar="N", help="Nested calls.  [1000]")
@click.option(
    "--level",
    type=click.Choice(["1", "2", "3", "4"]),
    help="Confine at this level only, or fail; for tests.  [the best there is]",
)
@click.option(
    "--allow-unsafe-code",
    is_flag=True,
    help="Accept level 4, which limits but does not confine.",
)
@click.option("--verbose", is_flag=True, help="Tracebacks of Orchestry's own errors.")
def run(file: str, level: str | None, allow_unsafe_code: bool, verbose: bool, **given: Any) -> int:
    """Test the programs in FILE, one JSON object a line; "-" is stdin.

    \b
    In:  {"id", "code", "entry_point", "tests": [[args, expected], ...], "wall_s"}
    Out: {"id", "verdict", "passed", "total", "why"}

    A test calls the entry point with the list of arguments. Types must match: True is not 1, and a
    list is no tuple, so a program that returns one can't pass, for JSON has none. Floats agree
    within 1e-9.

    The verdict is "pass" if all tests passed, else the gravest of its calls: "timeout", "memory",
    "error" (too much output and a program without tests included), "fail"; `why` describes the
    first call that earned it. Verdicts come in the order of the lines, each as soon as it is known;
    programs run on all cores.

    wall_s is optional, and is then that program's only time limit unless --cpu-s is given. Other
    keys are passed over.

    A bad line is named on stderr with exit code 2. A file is checked as a whole before anything
    runs; of stdin or a pipe, lines before the bad one still get their verdicts, and none after it
    is read. The level of confinement is printed once on stderr.

    Exit codes: 0 whatever the verdicts, 1 the sandbox failed, 2 bad input, 130 interrupted.
    """
    limits = _limits({name: value for name, value in given.items() if value is not None})
    cpu = given["cpu_s"] is not None
    _check(file, limits, cpu=cpu)
    sandbox = open_sandbox(limits, int(level) if level else None, allow_unsafe=allow_unsafe_code)
    asyncio.run(_run(_programs(file, limits, cpu=cpu), sandbox))
    return 0


def _limits(given: dict[str, Any]) -> Limits:
    try:
        return Limits(**given)
    except ValidationError as error:
        flag = str(error.errors()[0]["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{flag}: {reason(error).partition(': ')[2]}") from None


def _check(file: str, limits: Limits, *, cpu: bool) -> None:
    """Raises ConfigError for what is seen to be bad before anything runs."""
    path = Path(file)
    if file == "-" and sys.stdin is None:
        raise ConfigError("stdin is closed: give a file of JSON lines, or pipe them in")
    if file != "-" and (path.is_file() or path.is_dir() or not path.exists()):
        for _ in _programs(file, limits, cpu=cpu):  # not of a pipe, which can be read only once
            pass


def _programs(file: str, limits: Limits, *, cpu: bool) -> Iterator[Program]:
    if file == "-":
        yield from read(sys.stdin.buffer, "stdin", limits, cpu=cpu)
        return
    try:
        with Path(file).open("rb") as lines:
            yield from read(lines, file, limits, cpu=cpu)
    except OSError as error:
        raise ConfigError(
            f"{file or repr(file)} can't be read ({error.strerror}): give a file of JSON lines, "
            "or - for stdin"
        ) from None


async def _run(programs: Iterator[Program], opened: Any) -> None:
    """Prints the reports in order. An error of `programs` is raised once all before it are out."""
    async with opened as sandbox:
        click.echo(f"sandbox level {sandbox.level}", err=True)
        room = asyncio.Semaphore(WINDOW)
        reports: Reports = asyncio.Queue()
        feeder = asyncio.create_task(_feed(programs, sandbox, reports, room))
        try:
            told = 0
            while (task := await reports.get()) is not None:
                click.echo(json.dumps(await task))
                room.release()
                told += 1
            await feeder
            if not told:
                click.echo("no program was given, so there are no verdicts", err=True)
        finally:
            feeder.cancel()
            await asyncio.gather(feeder, *_cancelled(reports), return_exceptions=True)


def _cancelled(reports: Reports) -> Iterator[asyncio.Task[dict[str, Any]]]:
    """The tasks that nobody will wait for, each told to end."""
    while not reports.empty():
        if (task := reports.get_nowait()) is not None:
            task.cancel()
            yield task


async def _feed(
    programs: Iterator[Program], sandbox: Sandbox, reports: Reports, room: asyncio.Semaphore
) -> None:
    """Starts programs while there is room; says that it ended also after an error."""
    try:
        while (program := await asyncio.to_thread(next, programs, None)) is not None:
            await room.acquire()
            reports.put_nowait(asyncio.create_task(judge(program, sandbox)))
    finally:
        reports.put_nowait(None)
