"""The command line, the only place that prints.

Commands load when called, so that `--help` answers at once. Here errors become one line on stderr
and an exit code.
"""

from __future__ import annotations

import errno
import io
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from typing import TextIO, cast

import click

from orchestry import __version__
from orchestry.cli.groups import Group
from orchestry.cli.screen import fitted
from orchestry.cli.streams import Lenient
from orchestry.core.launch import launched

COMMANDS = {
    "run": "Search or train on a task; writes a run directory.",
    "resume": "Go on with a run that was stopped or killed.",
    "evaluate": "Score a run's configuration on held-out problems.",
    "baselines": "Play what a team is to be compared with.",
    "report": "Write down what runs came to: tables, figures, examples.",
    "export": "Take what a local run learned elsewhere: adapters, or merged models.",
    "rate": "Rate trajectories yourself: your word outranks the judge.",
    "tasks": "List, check and create tasks.",
    "behaviors": "List, show and compare what teams learned.",
    "judge": "Measure a judge before trusting it.",
    "sandbox": "Run untrusted programs against tests, confined.",
    "doctor": "Check this machine: providers, weights, sandbox, disk.",
}


LAUNCHED = ("run", "resume", "evaluate", "baselines")
"""Commands that several processes can share: see orchestry/backends/local/distributed.py."""
ALONE = {"--dry-run", "--help", "-h", "list"}
"""With these, they load no weights."""


class LazyGroup(Group):
    """Commands by name; a command's module is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"orchestry.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orchestry")
def group() -> None:
    """Reinforcement learning for teams of language models.

    A task and its reward are written once; a backend decides how the team learns.
    """


def main(args: list[str] | None = None) -> None:
    """Runs the command line and exits with its code.

    A reader of stdout that leaves (`| head -1`) changes no code, and neither does a stderr that
    can't be written: notes and bars may not fail a run that is being paid for.
    """
    argv = sys.argv[1:] if args is None else args
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character
    out = cast(TextIO, Lenient(sys.stdout, BrokenPipeError))
    err = cast(TextIO, Lenient(sys.stderr, OSError))
    with redirect_stdout(out), redirect_stderr(err):
        code = _code(argv)
        out.flush()
        err.flush()
    sys.exit(code)


def _code(argv: list[str]) -> int:
    """Runs a command; what it raises becomes a line on stderr and a code."""
    try:
        if launched().rank:
            return _follow(argv)
        return group.main(args=argv, prog_name="orchestry", standalone_mode=False) or 0
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        click.echo(fitted(shown.getvalue().rstrip(), stderr=True), err=True)
        return 2
    except click.Abort:
        click.echo("orchestry: interrupted; `orchestry resume RUN` goes on with a run", err=True)
        return 130
    except Exception as error:
        return _report(error, verbose="--verbose" in argv)


def _follow(argv: list[str]) -> int:
    """Any process of a launch but the first, which alone reads, writes and says something."""
    if argv[:1] and argv[0] in LAUNCHED and not ALONE.intersection(argv):
        with suppress(ImportError):  # the first process says what is not installed
            from orchestry.backends.local.distributed import follow

            follow()
    return 0


def _report(error: Exception, *, verbose: bool) -> int:
    """One line on stderr, after the traceback where it is wanted; returns the exit code."""
    from orchestry.core.errors import OrchestryError, fault, too_long

    if verbose:
        import traceback

        traceback.print_exception(error)
    known = error if isinstance(error, OrchestryError) else fault(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        known = OrchestryError(
            f"{error.filename or 'the output'} can't be written ({error.strerror}): free space "
            "there, then `orchestry resume RUN`; every answer recorded so far is kept"
        )
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        known = too_long(error)
    click.echo(fitted(f"orchestry: {known}", stderr=True), err=True)
    return known.exit_code
