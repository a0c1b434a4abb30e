"""Rich's console, with every text tamed before it is styled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, cast

from rich import console
from rich.segment import Segment

from orchestry.report.words import tame


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
