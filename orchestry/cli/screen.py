"""Where output goes: a terminal of some width, or a file or pipe, which gets whole lines.

The streams may fail. Text from others can't control the terminal.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

from orchestry.report.text import tame

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from orchestry.cli.console import Console

UNBOUNDED = 10_000
"""Columns of a file: wide, so that a command copied from it has no line breaks."""


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr."""
    from orchestry.cli.console import Console

    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=UNBOUNDED)


def print_framed(where: Console, body: RenderableType, title: str, *, expand: bool = False) -> None:
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
    """Names and values, one row per pair; a value too long for its row is continued below."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def fitted(text: str, hang: int = 0, *, stderr: bool = False) -> str:
    """Prints text; a terminal wraps it between words, and indents all but the first line by
    `hang`."""
    if not (sys.stderr if stderr else sys.stdout).isatty():
        return text
    wrapper = textwrap.TextWrapper(
        shutil.get_terminal_size().columns,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(map(wrapper.fill, text.splitlines()))


_RESET = "\x1b[0m"
"""What colorama, which numba loads, writes when Python exits."""


class Lenient:
    """A text stream that writes nothing more after its first error of the given kind.

    All output of the command line passes here, and its control characters are removed.
    """

    def __init__(self, stream: TextIO | None, kind: type[OSError]) -> None:
        self._stream = io.StringIO() if stream is None else stream  # closed by the caller: `>&-`
        self._kind = kind

    @property
    def styled(self) -> Styled:
        """The same stream for our own colours and bars, whose text a Console has made safe."""
        return Styled(self._stream, self._kind)

    def write(self, text: str) -> int:
        if text != _RESET:
            self._write(tame(text))
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._kind:
            self.silence()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except self._kind:
            self.silence()

    def silence(self) -> None:
        """Discards the rest; otherwise the buffer would fail again when Python exits."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        except ValueError:
            pass  # closed, or no file: nothing is left that could fail
        finally:
            os.close(nowhere)


class Styled(Lenient):
    """Writes unchanged."""

    def write(self, text: str) -> int:
        self._write(text)
        return len(text)
