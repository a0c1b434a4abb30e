"""The pulse of a run: what it does at present and how far it is, for whoever watches it live."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pulse:
    """Of one process. Written as things happen, read whenever a screen is drawn."""

    doing: str = ""
    """Who was last answered, or what is under way in place of answers."""
    answers: int = 0
    """Calls answered so far, by cache and journal too: an ETA is made of them."""
    tokens: int = 0
    """Drawn or received by this process."""
