"""Rich's console, with every text tamed before it is styled; and notes on stderr, said once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import IO, cast

from rich import console
from rich.segment import Segment
from rich.text import Text

from orchestry.report.text import tame

LONGEST = 100
"""Characters of a note by which it is named again."""


class Console(console.Console):
    """Its own controls reach the terminal; those within a text are shown instead."""

    @property
    def file(self) -> IO[str]:
        """Where it writes."""
        stream = super().file
        return cast(IO[str], getattr(stream, "styled", stream))

    @file.setter
    def file(self, new: IO[str]) -> None:
        self._file = new

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See rich: the segments of what is printed."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(tame(text), style)


class Notes:
    """Says each note at once, and one that comes again only at the end, with its count."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said: Counter[str] = Counter()

    def __call__(self, text: str) -> None:
        self._said[text] += 1
        if self._said[text] == 1:
            say(self.console, text)

    def close(self) -> None:
        """How often those came that came again."""
        for text, count in self._said.items():
            if count > 1:
                short = text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()}..."
                say(self.console, f"{count} times in all: {short}")
        self._said.clear()


def say(console: Console, text: str) -> None:
    """One line; a terminal gets it broken between words, a file whole."""
    console.print(Text(f"· {text}", style="dim"), soft_wrap=not console.is_terminal)
