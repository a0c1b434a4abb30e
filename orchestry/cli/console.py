"""Rich's console, with control characters removed from every text; and notes on stderr, each
printed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import IO, cast

from rich import console
from rich.segment import Segment
from rich.text import Text

from orchestry.report.text import tame

_LONGEST = 100
"""A repeated note is shown with this many of its characters."""


class Console(console.Console):
    """Its own control codes reach the terminal; those inside a text are made visible."""

    @property
    def file(self) -> IO[str]:
        """The stream it writes to."""
        stream = super().file
        return cast(IO[str], getattr(stream, "styled", stream))

    @file.setter
    def file(self, new: IO[str]) -> None:
        self._file = new

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Overrides rich: the segments to print."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(tame(text), style)


class Notes:
    """Prints each note at once. A repeated note is printed again only at the end, with its
    count."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said: Counter[str] = Counter()

    def __call__(self, text: str) -> None:
        self._said[text] += 1
        if self._said[text] == 1:
            say(self.console, text)

    def close(self) -> None:
        """Prints how often each repeated note came."""
        for text, count in self._said.items():
            if count > 1:
                short = text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()}..."
                say(self.console, f"{count} times in all: {short}")
        self._said.clear()


def say(console: Console, text: str) -> None:
    """Prints one line: wrapped between words on a terminal, whole in a file."""
    console.print(Text(f"· {text}", style="dim"), soft_wrap=not console.is_terminal)
