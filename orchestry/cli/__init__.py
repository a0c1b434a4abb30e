"""The command line. Commands load when called, so that `--help` answers at once.

Here errors become one line on stderr and an exit code; nowhere else in the package is printed.
"""

from __future__ import annotations

import errno
import io
import sys
from importlib import import_module

import click

from orchestry import __version__

COMMANDS = {
    "run": "Search or train on a task; writes a run directory.",
    "resume": "Go on with a run that was stopped or killed.",
    "evaluate": "Score a run's configuration on held-out problems.",
    "tasks": "List, check and create tasks.",
    "doctor": "Check this machine: providers, weights, sandbox, disk.",
}


class LazyGroup(click.Group):
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
    """Runs the command line and exits with its code."""
    argv = sys.argv[1:] if args is None else args
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character
    try:
        code = group.main(args=argv, prog_name="orchestry", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = 2
    except click.Abort:
        click.echo("orchestry: interrupted; `orchestry resume RUN` goes on with a run", err=True)
        code = 130
    except Exception as error:
        code = _report(error, verbose="--verbose" in argv)
    sys.exit(code or 0)


def _report(error: Exception, *, verbose: bool) -> int:
    """One line on stderr, after the traceback where it is wanted; returns the exit code."""
    from orchestry.errors import OrchestryError, fault

    if verbose:
        import traceback

        traceback.print_exception(error)
    known = error if isinstance(error, OrchestryError) else fault(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        known = OrchestryError(
            f"{error.filename or 'the output'} can't be written ({error.strerror}): free space "
            "there, then `orchestry resume RUN`; every answer recorded so far is kept"
        )
    click.echo(f"orchestry: {known}", err=True)
    return known.exit_code
