"""What a run does now and its progress, for live views."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pulse:
    """One process's activity; updated by its work, read when the screen is drawn."""

    doing: str = ""
    """The agent last answered, or the current activity between answers."""
    answers: int = 0
    """Answered calls so far, including cache and journal; the ETA is computed from them."""
    tokens: int = 0
    """Drawn or received by this process."""
