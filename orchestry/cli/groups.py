"""A group of commands that knows what was meant."""

from __future__ import annotations

import click

from orchestry.core.errors import unknown


class Group(click.Group):
    """A group of commands; an unknown name is answered with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            raise click.UsageError(unknown("command", args[0], known), ctx)
        return super().resolve_command(ctx, args)
