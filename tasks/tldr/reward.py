"""The four parts of the reward, each a number in [0, 1], and how far each of two texts counts.

After the writing reward of MAGRPO (Liu et al. 2025, arXiv:2508.04652): lengths, length ratio,
unique-word ratio, style, where a level that fails stops the sum. That one is fooled by `so` inside
of words, by shuffled words and by copies. Here a level opens the next in proportion, and all of
them count as far as both texts are sound. README.md says where the numbers differ, and why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .fluency import Span, fluency, ramp
from .options import Options
from .words import content, grams, loose_grams, words

TRANSITIONS: Mapping[str, tuple[str, ...]] = {
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
"""Words and phrases that join sentences, by what they say; matched whole."""
KINDS_WANTED = 2
CROWDED: Span = (0.24, 0.15)
"""Share of a text's words that are transitions: ordinary at the second number, stuffed at the
first."""

GROUNDED: Span = (0.08, 0.4)
COPIED: Span = (1.0, 0.5)
ECHOED: Span = (0.8, 0.35)
OPEN_AT = 0.5
"""The value of a part from which the parts after it count in full."""
FOOT = 0.1
"""What the ends of FACTS' linear stretches are worth here, so that a slope leads up to them."""


@dataclass(frozen=True)
class Text:
    """One answer beside the post it sums up."""

    raw: str
    post: str

    @cached_property
    def tokens(self) -> list[str]:
        return words(self.raw)

    @cached_property
    def topics(self) -> frozenset[str]:
        return frozenset(content(self.tokens))

    @cached_property
    def fluency(self) -> float:
        return fluency(self.raw, self.tokens)

    @cached_property
    def grounding(self) -> float:
        """The share of its distinct content words that the post has."""
        shared = self.topics & frozenset(content(words(self.post)))
        return len(shared) / len(self.topics) if self.topics else 0.0

    @cached_property
    def copying(self) -> float:
        """The share of its runs of words that stand in the post."""
        return overlap(self.tokens, words(self.post))

    @property
    def soundness(self) -> float:
        """How far it counts: fluent, about the post, and not the post itself."""
        return self.fluency * ramp(self.grounding, GROUNDED) * ramp(self.copying, COPIED)


def soundness(concise: Text, detailed: Text) -> float:
    """How far a pair counts, unless one text is the other again: half as the geometric mean of
    the two, half as their mean.

    The first wants both; the second lets each writer learn while the other still writes nonsense,
    and leaves a pair of one good text and one hack a quarter.
    """
    shorter, longer = sorted((concise.tokens, detailed.tokens), key=len)
    pair = concise.soundness, detailed.soundness
    both = 0.5 * math.sqrt(pair[0] * pair[1]) + 0.25 * sum(pair)
    return both * ramp(overlap(shorter, longer), ECHOED)


def parts(concise: Text, detailed: Text, options: Options) -> dict[str, float]:
    """The four parts of a pair, each opened by those before it and scaled by soundness."""
    levels = {
        "length": length(concise, options) * length(detailed, options),
        "ratio": ratio(concise, detailed, options),
        "words": variety(concise, detailed, options),
        "style": style(concise, detailed, options),
    }
    if levels["length"] == 0.0:
        return dict.fromkeys(levels, 0.0)
    counts = soundness(concise, detailed)
    found = {}
    for name, value in levels.items():
        found[name] = counts * value
        counts *= min(1.0, value / OPEN_AT)
    return found


def length(text: Text, options: Options) -> float:
    """1 between the limits; falls to 0 at a third of the lower one and at one and a half times
    the upper one."""
    low, high = options.min_words, options.max_words
    size = len(text.tokens)
    return ramp(size, (low / 3, low)) * ramp(size, (1.5 * high, high))


def ratio(concise: Text, detailed: Text, options: Options) -> float:
    """Characters of the detailed text for one of the concise one, as a plateau with slopes."""
    if not concise.tokens:
        return 0.0
    found = len(detailed.raw) / len(concise.raw)
    start, low, high, end = options.ratio
    inner = ramp(found, (start, low)) * ramp(found, (end, high))
    outer = ramp(found, (start / 2, start)) * ramp(found, (2 * end, end))
    return FOOT * outer + (1 - FOOT) * inner


def variety(concise: Text, detailed: Text, options: Options) -> float:
    """Distinct content words of the detailed text for one of the concise one."""
    if not concise.topics:
        return 0.0
    return ramp(len(detailed.topics) / len(concise.topics), options.unique)


def style(concise: Text, detailed: Text, options: Options) -> float:
    """0.4 for transitions, 0.6 for words in common."""
    common = min(1.0, jaccard(concise, detailed) / options.jaccard)
    return 0.4 * transitions(detailed) + 0.6 * common


def jaccard(one: Text, other: Text) -> float:
    """Content words that both have, of those that either has."""
    either = one.topics | other.topics
    return len(one.topics & other.topics) / len(either) if either else 0.0


def transitions(text: Text, table: Mapping[str, tuple[str, ...]] = TRANSITIONS) -> float:
    """Kinds of transitions of the two wanted; less where they crowd the text."""
    plain = f" {' '.join(text.tokens)} "
    found = {kind: sum(map(plain.count, padded(phrases))) for kind, phrases in table.items()}
    kinds = sum(count > 0 for count in found.values())
    crowd = sum(found.values()) / max(1, len(text.tokens))
    return min(1.0, kinds / KINDS_WANTED) * ramp(crowd, CROWDED)


def padded(phrases: tuple[str, ...]) -> list[str]:
    """The phrases with a space at both ends, as whole words stand in a text."""
    return [f" {phrase} " for phrase in phrases]


def overlap(tokens: list[str], others: list[str]) -> float:
    """The share of the runs of three words that the others have as well, or nearly so: a copy
    with every fourth word left out is still a copy."""
    runs, known = grams(tokens, 3), loose_grams(others)
    return sum(run in known for run in runs) / len(runs) if runs else 0.0


def tags(concise: Text, detailed: Text, found: Mapping[str, float]) -> list[str]:
    """What is counted over a run's leaves."""
    pair = (concise, detailed)
    holds = {
        "sound": soundness(concise, detailed) >= 0.5,
        "whole": all(value > 1.0 - 1e-9 for value in found.values()),
        "empty": any(not text.tokens for text in pair),
        "copied": any(ramp(text.copying, COPIED) < 0.5 for text in pair),
        "off_topic": any(text.tokens and ramp(text.grounding, GROUNDED) < 0.5 for text in pair),
        "unreadable": any(text.tokens and text.fluency < 0.5 for text in pair),
    }
    return [tag for tag, held in holds.items() if held]


def remarks(concise: Text, detailed: Text) -> str:
    """What was measured, in prose."""
    pair = (("concise", concise), ("detailed", detailed))
    if empty := [name for name, text in pair if not text.tokens]:
        return f"No words in: {', '.join(empty)}."
    ratio_found = len(detailed.raw) / len(concise.raw)
    variety_found = len(detailed.topics) / max(1, len(concise.topics))
    lines = [
        f"The detailed text has {ratio_found:.1f} times the characters and {variety_found:.1f} "
        "times the content words of the concise one."
    ]
    lines += [
        f"The {name} text has {len(text.tokens)} words; fluency {text.fluency:.2f}, content words "
        f"from the post {text.grounding:.2f}, runs copied from it {text.copying:.2f}."
        for name, text in pair
    ]
    return " ".join(lines)
