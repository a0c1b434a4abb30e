"""Where output goes: a terminal of some width, or a file or pipe, which gets whole lines."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from orchestry.cli.console import Console

UNBOUNDED = 10_000
"""Columns of a file: what is copied from one, such as a command, has no breaks in it."""


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr."""
    from orchestry.cli.console import Console

    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=UNBOUNDED)


def framed(where: Console, body: RenderableType, title: str, *, expand: bool = False) -> None:
    """Prints a part of the output: in a frame on a terminal, else under its title."""
    from rich.panel import Panel
    from rich.text import Text

    if where.is_terminal:
        where.print(Panel(body, title=title, expand=expand))
        return
    where.print(Text.from_markup(title))
    where.print(body)
    where.print()


def facts(*rows: tuple[str, str]) -> Table:
    """Names and values, a row each; a value too long for its row goes on below."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def fitted(text: str, hang: int = 0, *, stderr: bool = False) -> str:
    """Prose; on a terminal each of its lines is broken between words, and indented from its second
    one on by `hang`."""
    if not (sys.stderr if stderr else sys.stdout).isatty():
        return text
    wrapper = textwrap.TextWrapper(
        shutil.get_terminal_size().columns,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(map(wrapper.fill, text.splitlines()))
