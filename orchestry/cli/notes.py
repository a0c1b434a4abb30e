"""Notes on stderr: what a user should know, said once."""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from orchestry.cli.console import Console

LONGEST = 100
"""Characters of a note by which it is named again."""


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
