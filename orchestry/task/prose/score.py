"""Scores in [0, 1] without cliffs: ramps, plateaus, levels that open the next, transitions; and the
options of tasks with two texts. English; pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from orchestry.core.types import Frozen

Span = tuple[float, float]
Plateau = tuple[float, float, float, float]
"""Where the slope up starts, the plateau from and to, and where the slope down ends."""

OPEN_AT = 0.5
"""The value of a level from which the levels after it count in full."""
FOOT = 0.1
"""The value at the ends of a plateau's slopes; a gentler slope leads up to them."""


def ramp(value: float, span: Span) -> float:
    """0 at the first number and 1 at the second, linear between, flat outside; may fall."""
    start, end = span
    return min(1.0, max(0.0, (value - start) / (end - start)))


def plateau(value: float, spans: Plateau) -> float:
    """1 on the plateau, `FOOT` at the ends of its slopes, 0 from half of the first end and from
    double the last on."""
    start, low, high, end = spans
    inner = ramp(value, (start, low)) * ramp(value, (end, high))
    outer = ramp(value, (start / 2, start)) * ramp(value, (2 * end, end))
    return FOOT * outer + (1 - FOOT) * inner


def opened(levels: Mapping[str, float], counts: float) -> dict[str, float]:
    """The levels in order, scaled by `counts` and by the levels before them: each level opens the
    next in proportion, fully from `OPEN_AT` on."""
    found = {}
    for name, value in levels.items():
        found[name] = counts * value
        counts *= min(1.0, value / OPEN_AT)
    return found


Words = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Four = tuple[Positive, Positive, Positive, Positive]
"""Where a slope up starts, the plateau from and to, and where the slope down ends."""
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class PairBounds(Frozen):
    """Limits of length, and slopes of ratios between two texts; a task gives the numbers.

    Raises ValueError if a slope's numbers do not rise, or no length is allowed.
    """

    min_words: Words
    max_words: Words
    """Allowed number of words of each text."""
    ratio: Four
    """Characters of the second text per character of the first."""
    unique: tuple[Positive, ...]
    """The same ratio for distinct content words; two numbers are a slope up without an upper
    end."""
    jaccard: Share
    """Jaccard similarity of content words that earns full marks."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in ("ratio", "unique"):
            found = getattr(self, name)
            if any(a >= b for a, b in pairwise(found)):
                raise ValueError(f"{name} must rise from number to number, but is {found}")
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is over max_words {self.max_words}")
        return self


Kinds = Mapping[str, tuple[str, ...]]

TRANSITIONS: Kinds = {
    "cause": ("because", "since", "so", "therefore", "thus", "as a result", "due to", "hence"),
    "contrast": ("but", "however", "although", "though", "yet", "instead", "while", "despite"),
    "order": (
        *("then", "after", "afterwards", "before", "first", "next", "finally", "meanwhile"),
        *("later", "when", "until", "now", "eventually", "in the end", "at first"),
    ),
    "addition": ("also", "moreover", "in addition", "furthermore", "besides", "as well"),
    "example": ("for example", "for instance", "such as", "in particular", "especially"),
    "summary": ("overall", "in short", "in conclusion", "in summary", "to sum up"),
}
"""Phrases by kind; matched as whole words."""
KINDS_WANTED = 2
CROWDED: Span = (0.24, 0.15)
"""Share of transitions among a text's words: 1 up to the second number, 0 from the first."""


def transitions(tokens: Sequence[str], kinds: Kinds = TRANSITIONS) -> float:
    """The share of KINDS_WANTED kinds of transitions found; less if they crowd the text."""
    plain = f" {' '.join(tokens)} "
    counts = [sum(plain.count(f" {phrase} ") for phrase in kinds[kind]) for kind in kinds]
    met = sum(count > 0 for count in counts)
    return min(1.0, met / KINDS_WANTED) * ramp(sum(counts) / max(1, len(tokens)), CROWDED)
