"""A text and its source, and the soundness of one text or a pair. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from .fluency import fluency
from .score import Span, ramp
from .sense import Sense, tracing
from .words import content, grams, loose_grams, sentences, words

GROUNDED: Span = (0.08, 0.4)
_COPIED: Span = (1.0, 0.5)
ECHOED: Span = (0.8, 0.35)
QUOTE = 8
"""A word-for-word stretch of at least this many words is a quotation."""
_PRIOR_PAIRS = 4
"""Pairs, half of which agree, added to a text's own, because few pairs prove little."""


@dataclass(frozen=True)
class Text:
    """One agent's text and its source."""

    raw: str
    source: str
    grounded: Span = GROUNDED
    """Share of content words from the source: 0 at the first number, 1 at the second."""
    copied: Span = _COPIED
    """The same for the share of runs copied from the source."""
    agreed: Span | None = None
    """The same for the agreement of neighbouring words with the source; None: not required."""
    quoted: Span | None = None
    """The same for the share of words in quotations; None: not required."""
    traced: Span | None = None
    """The same for the share of content words that stand together as in the source."""

    @cached_property
    def tokens(self) -> list[str]:
        return words(self.raw)

    @cached_property
    def topics(self) -> frozenset[str]:
        """The stems of its content words."""
        return frozenset(content(self.tokens))

    @cached_property
    def fluency(self) -> float:
        return fluency(self.raw, self.tokens)

    @cached_property
    def grounding(self) -> float:
        """The share of its distinct content words that the source has."""
        shared = self.topics & frozenset(content(words(self.source)))
        return len(shared) / len(self.topics) if self.topics else 0.0

    @cached_property
    def copying(self) -> float:
        """The share of its runs of words that occur in the source."""
        return overlap(self.tokens, words(self.source))

    @cached_property
    def tracing(self) -> float:
        """The same for content words alone, so that other words between them can't hide a copy."""
        return tracing(self.raw, self.source)

    @cached_property
    def agreement(self) -> float:
        """The share of neighbouring words that the source also has in one sentence.

        Only content words that the source has are used, in order. Random words in a sound sentence
        disagree, because the source does not have them together.
        """
        places = _places(self.source)
        told = [content(words(sentence)) for sentence in sentences(self.raw)]
        known = [[word for word in said if word in places] for said in told]
        pairs = [(a, b) for said in known for a, b in pairwise(said) if a != b]
        agree = sum(not places[a].isdisjoint(places[b]) for a, b in pairs)
        return (agree + _PRIOR_PAIRS / 2) / (len(pairs) + _PRIOR_PAIRS)

    @cached_property
    def quoting(self) -> float:
        """The share of its words in quotations; added words do not hide them."""
        known = set(grams(words(self.source), QUOTE))
        starts = [i for i, run in enumerate(grams(self.tokens, QUOTE)) if run in known]
        covered = {i + step for i in starts for step in range(QUOTE)}
        return len(covered) / len(self.tokens) if self.tokens else 0.0

    @property
    def about(self) -> float:
        """How far it is about the source."""
        return ramp(self.grounding, self.grounded)

    @property
    def own(self) -> float:
        """How far it is not the source itself."""
        untraced = ramp(self.tracing, self.traced) if self.traced else 1.0
        return ramp(self.copying, self.copied) * untraced

    @property
    def soundness(self) -> float:
        """Its soundness: fluent, about the source, not a copy; if required, in agreement with the
        source and without quotations."""
        agreed = ramp(self.agreement, self.agreed) if self.agreed else 1.0
        unquoted = ramp(self.quoting, self.quoted) if self.quoted else 1.0
        return self.fluency * self.about * self.own * agreed * unquoted


def _places(source: str) -> dict[str, set[int]]:
    """The sentence numbers of each content word of the source."""
    places: dict[str, set[int]] = {}
    for number, sentence in enumerate(sentences(source)):
        for word in content(words(sentence)):
            places.setdefault(word, set()).add(number)
    return places


def pair_soundness(one: Text, other: Text, sense: Sense) -> float:
    """The soundness of a pair: half the geometric mean of the two texts' plus half their mean;
    reduced if one text repeats the other or the pair says nothing.

    The geometric mean requires both texts. The mean lets each writer learn while the other still
    writes nonsense; a good text beside a hack scores a quarter.
    """
    shorter, longer = sorted((one.tokens, other.tokens), key=len)
    pair = one.soundness, other.soundness
    both = 0.5 * math.sqrt(pair[0] * pair[1]) + 0.25 * sum(pair)
    said = sense.worth(one.source, one.raw, other.raw)
    sound = both * said * ramp(overlap(shorter, longer), ECHOED)
    return min(sound, sense.most(one.source, one.raw, other.raw))


def in_length(text: Text, low: int, high: int) -> float:
    """1 from `low` to `high` words; falls to 0 at a third of the lower limit and at one and a half
    times the upper one."""
    size = len(text.tokens)
    return ramp(size, (low / 3, low)) * ramp(size, (1.5 * high, high))


def ratio(first: Text, second: Text) -> float:
    """Characters of the second text per character of the first; 0 if the first has no word."""
    return len(second.raw) / len(first.raw) if first.tokens else 0.0


def variety(first: Text, second: Text) -> float:
    """Distinct content words of the second text per one of the first; 0 if the first has none."""
    return len(second.topics) / len(first.topics) if first.topics else 0.0


def jaccard(one: Text, other: Text) -> float:
    """Jaccard similarity of the content words."""
    either = one.topics | other.topics
    return len(one.topics & other.topics) / len(either) if either else 0.0


def overlap(tokens: Sequence[str], others: Sequence[str]) -> float:
    """The share of three-word runs that the other text has too, also with a word left out: a copy
    without every fourth word is still a copy."""
    runs, known = grams(tokens, 3), loose_grams(others)
    return sum(run in known for run in runs) / len(runs) if runs else 0.0


def faults(*texts: Text) -> dict[str, bool]:
    """Fault tags, and whether each applies to at least one text."""
    return {
        "empty": any(not text.tokens for text in texts),
        "copied": any(text.own < 0.5 for text in texts),
        "off_topic": any(text.tokens and text.about < 0.5 for text in texts),
        "unreadable": any(text.tokens and text.fluency < 0.5 for text in texts),
    }


def remark(name: str, text: Text, source: str) -> str:
    """The measures of one text, in prose; `source` is the reader's word for its source."""
    return (
        f"The {name} text has {len(text.tokens)} words; fluency {text.fluency:.2f}, content words "
        f"from the {source} {text.grounding:.2f}, runs copied from it {text.copying:.2f}."
    )
