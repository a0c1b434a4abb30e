"""Words and phrases that join sentences. English; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .ramps import Span, ramp

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
"""Phrases by what they say; matched whole."""
KINDS_WANTED = 2
CROWDED: Span = (0.24, 0.15)
"""Share of a text's words that are transitions: ordinary at the second number, stuffed at the
first."""


def transitions(tokens: Sequence[str], kinds: Kinds = TRANSITIONS) -> float:
    """Kinds of transitions of the two wanted; less where they crowd the text."""
    plain = f" {' '.join(tokens)} "
    counts = [sum(plain.count(f" {phrase} ") for phrase in kinds[kind]) for kind in kinds]
    met = sum(count > 0 for count in counts)
    return min(1.0, met / KINDS_WANTED) * ramp(sum(counts) / max(1, len(tokens)), CROWDED)
