"""Adapts Typer: coloured help, and the nearest name for an unknown command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from orchestry.core.errors import unknown

_CommandT = TypeVar("_CommandT", bound=Callable[..., Any])


@contextmanager
def _coloured(stream: TextIO) -> Iterator[None]:
    """Prints help to that stream; our own colours reach a terminal."""
    with redirect_stdout(getattr(stream, "styled", stream)):
        yield


class Command(TyperCommand):
    """A command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help."""
        with _coloured(sys.stdout):
            super().format_help(ctx, formatter)


class CommandGroup(TyperGroup):
    """A group of commands; for an unknown name it suggests the nearest one."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help."""
        with _coloured(sys.stdout):
            super().format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        """For flags only. None becomes False, because Typer would load pydantic to check a None."""
        found = super().get_params(ctx)
        for param in found:
            param.default = param.default or False
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a command, the help goes to stderr, and the exit code is 2."""
        if not args and not ctx.resilient_parsing:
            with redirect_stdout(sys.stderr):
                ctx.get_help()
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first word names."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(unknown("command", args[0], known))
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """A module registers its commands here. Help texts are Markdown."""

    def __init__(
        self, help: str | None = None, cls: type[CommandGroup] = CommandGroup, **rest: Any
    ) -> None:
        rest = {"add_completion": False, **rest}
        super().__init__(cls=cls, rich_markup_mode="markdown", **rest)
        if help:  # a group even if it has only one command
            self.callback(help=help)(lambda: None)

    def command(self, name: str | None = None, **rest: Any) -> Callable[[_CommandT], _CommandT]:
        """Registers the function below it."""
        return super().command(name, **{"cls": Command, **rest})
