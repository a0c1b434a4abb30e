"""Whether a text reads like English, from counts alone: no model, no tokenizer. Pure.

Words are mapped to classes: the closed classes of `words.FUNCTION`; other words by their ending.
`bonds` measures how much likelier the order of classes is than chance, by a table of counts over
ordinary prose (`bonds.json`, from the train posts and golds of the task tldr, written by `python -m
benchmarks.quality.prose_bonds`). It distinguishes sentences from shuffled words.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from .score import Span, ramp
from .words import CLASS_OF, grams, sentences, words

COUNTS = Path(__file__).with_name("bonds.json")
"""Pairs of neighbouring classes as strings, with their counts."""
SMOOTHING = 2.0
"""Pseudo-counts in proportion to chance, so that an unseen pair has a finite bond."""
EDGE = "."
SHORT, LONG = 3, 45
"""Word limits of an ordinary sentence, neither fragment nor run-on."""
FUNCTION_LOW: Span = (0.15, 0.3)
FUNCTION_HIGH: Span = (0.8, 0.65)
BONDS: Span = (-0.12, 0.08)
_PRIOR_PAIRS = 6
"""Neutral pairs added to a text's own, because few words prove little."""
REPEATS: Span = (0.55, 0.9)
_SHAPE: Span = (-1.0, 0.8)


def fluency(text: str, tokens: list[str]) -> float:
    """The product of four ramps: function words, order, no repetition, whole sentences."""
    if not tokens:
        return 0.0
    share = sum(word in CLASS_OF for word in tokens) / len(tokens)
    return (
        ramp(share, FUNCTION_LOW)
        * ramp(share, FUNCTION_HIGH)
        * ramp(bonds(text), BONDS)
        * ramp(novelty(tokens), REPEATS)
        * ramp(shape(text), _SHAPE)
    )


def bonds(text: str) -> float:
    """Mean pointwise mutual information of neighbouring classes, in nats, shrunk to 0 for short
    texts. About 0 for random order, below 0 if unlikely neighbours occur. The least likely pair is
    left out: honest short texts have one, such as a noun without an article at the beginning."""
    table = _table()
    pairs = [pair for sentence in sentences(text) for pair in grams(classes(sentence), 2)]
    found = sorted(table.get(pair, 0.0) for pair in pairs)
    return sum(found[1:]) / (len(found) + _PRIOR_PAIRS)


def novelty(tokens: list[str]) -> float:
    """The share of distinct three-word runs; 1 for shorter texts."""
    runs = grams(tokens, 3)
    return len(set(runs)) / len(runs) if runs else 1.0


def shape(text: str) -> float:
    """The share of words in sentences that start with a capital or digit, end with a mark and are
    of ordinary length."""
    good = total = 0
    for sentence in sentences(text):
        count = len(words(sentence))
        start = next(char for char in sentence if char.isalnum())
        whole = not start.islower() and sentence.rstrip("\"')\u2019\u201d")[-1:] in tuple(".!?")
        good += count if whole and SHORT <= count <= LONG else 0
        total += count
    return good / total if total else 0.0


def classes(sentence: str) -> list[str]:
    """The classes of a sentence's words, with its edges."""
    return [EDGE, *map(word_class, words(sentence)), EDGE]


def word_class(word: str) -> str:
    """A word's closed class, else a class by its ending."""
    if word in CLASS_OF:
        return CLASS_OF[word]
    if word[0].isdigit():
        return "digit"
    for ending in ("ing", "ed", "ly", "s"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return f"-{ending}"
    return "other"


def pairs_of(texts: Iterable[str]) -> Counter[tuple[str, ...]]:
    """How often classes are neighbours in the texts' sentences."""
    runs = (classes(sentence) for text in texts for sentence in sentences(text))
    return Counter(pair for run in runs for pair in grams(run, 2))


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, ...], float]:
    """The bond of each pair of classes."""
    counts: dict[str, int] = json.loads(COUNTS.read_text(encoding="utf-8"))
    pairs = Counter({tuple(pair.split()): count for pair, count in counts.items()})
    first, second = Counter[str](), Counter[str]()
    for (a, b), count in pairs.items():
        first[a] += count
        second[b] += count
    bond: dict[tuple[str, ...], float] = {}
    for a in first:
        for b in second:
            chance = first[a] * second[b] / pairs.total()
            bond[a, b] = math.log((pairs[a, b] + SMOOTHING) / (chance + SMOOTHING))
    return bond
