"""The command line, the only place that prints.

Only the bar of a first download is drawn elsewhere (`core.files.progress_bar`). Commands are
imported when called, so that `--help` answers at once. Errors become one line on stderr and an exit
code here.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from orchestry import __version__
from orchestry.cli.groups import App, Command, CommandGroup
from orchestry.cli.screen import Lenient, fitted
from orchestry.core import extensions
from orchestry.core.errors import TRACEBACK, ConfigError, LeftOut, reason
from orchestry.core.extensions import Verb
from orchestry.core.machine import PARENT, end_with_parent, launched

PANELS = {
    "Play and learn": {
        "run": "Search or train on a task; writes a run directory.",
        "resume": "Continue a run that was stopped or killed.",
        "ask": "Ask a run's team, with what it learned, for work on a new input.",
        "export": "Export what a run learned: prompts, adapters or merged models.",
    },
    "Measure": {
        "evaluate": "Score a run's configuration on held-out problems.",
        "baselines": "Run the baselines that a team is compared with.",
        "tournament": "Let players meet in one game: scripts, policies, language models.",
        "watch": "Show runs in a browser while they go on.",
        "runs": "List runs: state, reward, dollars.",
        "compare": "Compare two runs: settings, and differences with intervals.",
        "report": "Write a report of one or more runs: tables, figures, examples.",
        "rate": "Rate trajectories yourself: your ratings outrank the judge's.",
    },
    "Look and prepare": {
        "config": "Show what a run's config comes to, and the schema of its keys.",
        "tasks": "List, check and create tasks.",
        "attach": "Make a task of a program that has agents of its own.",
        "behaviors": "List, show and compare what teams learned.",
        "sandbox": "Run untrusted programs against tests, confined.",
        "models": "List and fetch small models for the embedded provider.",
        "doctor": "Check this machine: providers, GPU, weights, sandbox, disk.",
    },
}
_MODULES = {"resume": "run", "runs": "listing", "watch": "live"}
"""Modules whose name differs from the command's."""
_LAUNCHED = ("run", "resume", "ask", "evaluate", "baselines")
"""Commands that may run in several processes: see orchestry/backends/launch.py."""
_SINGLE = ("sweep", "tournament")
"""Commands that load weights, but in one process."""
_COMPLETES = "_ORCHESTRY_COMPLETE"
"""Set where a shell asks how a line goes on."""
_ALONE = {"--dry-run", "--help", "-h", "list"}
"""With one of these options, the commands load no weights."""


def _own() -> dict[str, Verb]:
    """The kernel's commands, panel by panel."""
    return {
        name: Verb(panel, text, f"orchestry.cli.{_MODULES.get(name, name)}:app")
        for panel, commands in PANELS.items()
        for name, text in commands.items()
    }


class Later(Command):
    """A command's name and help line; its module is imported when the command is called or
    completed."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name, help=verb.help, rich_help_panel=verb.panel)
        self._verb = verb

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **more: Any) -> Any:
        """The context of the command itself."""
        name = str(self.name)
        found = get_command(self._app())
        if isinstance(found, TyperGroup):  # a module may have several commands
            found = found.commands.get(name, found)
        return found.make_context(info_name, args, *rest, **more)

    def _app(self) -> Any:
        """Raises ConfigError for one of another package that can't be loaded."""
        try:
            return extensions.load(self._verb.place)
        except Exception as error:  # whatever their module raises
            if self._verb.panel != extensions.THEIRS:
                raise
            raise ConfigError(
                f"{self.name} can't be loaded from {self._verb.place} ({reason(error)}): mend that "
                "package, or uninstall it"
            ) from error


class Root(CommandGroup):
    """All commands by name. Packages of others are looked at where a name is none of ours, and
    where all are listed."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(**rest)
        for name, verb in {**_own(), **extensions.verbs()}.items():
            self.add_command(Later(name, verb))

    def list_commands(self, ctx: Any) -> list[str]:
        """Ours, then theirs."""
        return list(dict.fromkeys([*super().list_commands(ctx), *extensions.theirs()]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Ours of that name, else theirs."""
        if (found := super().get_command(ctx, cmd_name)) is not None:
            return found
        verb = extensions.theirs().get(cmd_name)
        return Later(cmd_name, verb) if verb else None

    def invoke(self, ctx: Any) -> Any:
        """Typer alone would exit silently at an interruption."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = App(cls=Root, add_completion=True, context_settings={"help_option_names": ["-h", "--help"]})


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orchestry, version {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Reinforcement learning for teams of language models.

    A task and its reward are written once; a backend decides how the team learns.
    """


group = cast(Root, get_command(app))
COMMANDS: dict[str, str] = {name: one.help or "" for name, one in group.commands.items()}
"""Each command's line of help."""


def main(args: list[str] | None = None) -> None:
    """Runs the command line and exits with its code.

    The exit code stays the same if the reader of stdout leaves (`| head -1`) or stderr can't be
    written: output must not fail a run that is being paid for.
    """
    argv = sys.argv[1:] if args is None else args
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character
    out = cast(TextIO, Lenient(sys.stdout, BrokenPipeError))
    err = cast(TextIO, Lenient(sys.stderr, OSError))
    warnings.formatwarning = _warned
    with redirect_stdout(out), redirect_stderr(err):
        code = _code(argv)
        out.flush()
        err.flush()
    sys.exit(code)


_PLAIN = warnings.formatwarning


def _warned(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> str:
    """One line for what was left out of the user's data; others as Python has them."""
    if issubclass(category, LeftOut):
        return fitted(f"· {message}", stderr=True) + "\n"
    return _PLAIN(message, category, *place, **rest)


def _code(argv: list[str]) -> int:
    """Runs a command; an error becomes one line on stderr and an exit code."""
    try:
        if (parent := os.environ.pop(PARENT, "")).isdecimal():
            end_with_parent(int(parent))
        here = launched()
        _read_dotenv(argv, quiet=bool(here.rank))
        if here.rank:
            return _follow(argv)
        if here.processes > 1 and argv[:1] and argv[0] in _SINGLE:
            raise ConfigError(f"{argv[0]} takes one process: start it without a launcher")
        return group.main(args=argv, prog_name="orchestry", standalone_mode=False) or 0
    except typer.TyperException as error:
        typer.echo(fitted(_misused(error), stderr=True), err=True)
        return 2
    except typer.Abort:
        typer.echo("orchestry: interrupted; `orchestry resume RUN` continues a run", err=True)
        return 130
    except Exception as error:
        return _report(error, verbose="--verbose" in argv or bool(os.environ.get(TRACEBACK)))


def _read_dotenv(argv: list[str], *, quiet: bool) -> None:
    """Takes keys from the file .env, and tells the user of commands that may spend money."""
    if not Path(".env").is_file() or _COMPLETES in os.environ:
        return
    from orchestry.cli import dotenv

    own = argv[: argv.index("--")] if "--" in argv else argv
    dotenv.taken[:] = dotenv.take(os.environ, trust="--trust" in own)
    if dotenv.taken and not quiet and own[:1] and own[0] in (*_LAUNCHED, *_SINGLE):
        typer.echo(f"· from .env: {', '.join(dotenv.taken)}", err=True)


def _misused(error: typer.TyperException) -> str:
    """A usage error, below the command's usage line."""
    text = f"Error: {error.format_message().replace('Value error, ', '')}"
    wrong: list[Any] = getattr(error.__cause__, "errors", list)()  # of pydantic
    if wrong and (found := repr(wrong[0]["input"])) not in text:
        text += f", found {found}"
    if (context := getattr(error, "ctx", None)) is None:
        return text
    hint = f"Try '{context.command_path} {context.help_option_names[0]}' for help."
    return f"{context.get_usage()}\n{hint}\n\n{text}"


def _follow(argv: list[str]) -> int:
    """Runs any process of a launch except the first; only the first reads, writes and prints."""
    if argv[:1] and argv[0] in _LAUNCHED and not _ALONE.intersection(argv):
        with suppress(ImportError):  # the first process says what is not installed
            from orchestry.backends.launch import follow

            follow()
    return 0


def _report(error: Exception, *, verbose: bool) -> int:
    """Prints one line on stderr, after the traceback if it is wanted; returns the exit code."""
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
        if error.filename is None and isinstance(sys.stdout, Lenient):
            sys.stdout.silence()  # what is still in its buffer would change the exit code
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        known = too_long(error)
    typer.echo(fitted(f"orchestry: {known}", stderr=True), err=True)
    return known.exit_code
