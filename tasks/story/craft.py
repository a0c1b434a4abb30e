"""How a passage is made: whether its sentences hang together, and whether it is polished. Pure."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, pstdev

from orchestry import prose

LINKED: prose.Span = (0.2, 0.6)
OPENINGS: prose.Span = (0.4, 0.8)
RHYTHM: prose.Span = (0.1, 0.3)
_REFERRING = """
he she it they him her them his hers its their theirs himself herself itself themselves
this that these those there then
"""
REFERRING = frozenset(_REFERRING.split())
"""Words that point back to what was said."""
BACK = 2
"""Sentences that a sentence may hang on."""


def coherence(text: str, before: str = "") -> float:
    """The share of sentences that point back or share a content word with the two before them;
    the first sentence of a story need not. `before` is what the text continues."""
    earlier = list(prose.sentences(before))[-BACK:]
    said = [*earlier, *prose.sentences(text)]
    tokens = [prose.words(sentence) for sentence in said]
    topics = [frozenset(prose.content(words)) for words in tokens]
    places = range(max(1, len(earlier)), len(said))
    linked = [
        not REFERRING.isdisjoint(tokens[i])
        or any(topics[i] & topics[j] for j in range(max(0, i - BACK), i))
        for i in places
    ]
    return prose.ramp(fmean(linked), LINKED) if linked else 0.0


def polish(text: str) -> float:
    """Openings of neighbouring sentences that differ, times how much their lengths do; 0 for fewer
    than three sentences."""
    tokens = [prose.words(sentence) for sentence in prose.sentences(text)]
    if len(tokens) < 3:
        return 0.0
    openings = fmean(one[0] != other[0] for one, other in pairwise(tokens))
    lengths = [len(words) for words in tokens]
    return prose.ramp(openings, OPENINGS) * prose.ramp(pstdev(lengths) / fmean(lengths), RHYTHM)
