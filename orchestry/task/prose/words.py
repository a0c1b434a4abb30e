"""A text as words, sentences and what it is about. English; pure.

Rewards of writing tasks count words, not tokens, so that they are the same for every model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*[\"')\u2019\u201d]*")
_ENDINGS = ("ingly", "edly", "ings", "ing", "ed", "es", "ly", "er", "s")
_MIN_STEM = 3

FUNCTION: dict[str, str] = {
    "det": "a an the this that these those every each some any no another both all either neither "
    "much many more most few several such half enough",
    "poss": "my your his her its our their whose",
    "subj": "i you he she it we they one who there somebody someone everybody everyone nobody "
    "anybody anyone something nothing everything anything",
    "obj": "me him us them himself herself itself themselves myself ourselves yourself others",
    "be": "is are was were be been being am isn't wasn't aren't weren't",
    "have": "has have had having hasn't haven't hadn't",
    "do": "do does did don't doesn't didn't",
    "modal": "will would can could may might must shall should can't couldn't won't wouldn't "
    "shouldn't cannot",
    "to": "to",
    "of": "of",
    "prep": "in on at by for with from into onto about between under over through during without "
    "against among across behind beside besides along near until since around out up down off "
    "away back within towards inside outside above below despite except per like",
    "and": "and or nor but",
    "sub": "because although though while when where if whether than as so before after whenever "
    "unless once which what how why",
    "not": "not never only just even also too still already always often again then very now here "
    "finally however therefore moreover meanwhile instead yet ever almost rather quite soon later",
}
"""The closed word classes of English that show word order; each word is in one of them."""

CLASS_OF = {word: name for name, words in FUNCTION.items() for word in words.split()}


def words(text: str, most: int | None = None) -> list[str]:
    """The words in lower case, up to a limit; numbers are words, punctuation and underscores are
    not."""
    found: list[str] = []
    for match in _WORD.finditer(text):
        if len(found) == most:
            break
        found.append(match[0].lower().replace("\u2019", "'"))
    return found


def sentences(text: str) -> Iterator[str]:
    """Stretches up to a full stop, an exclamation or question mark, or the end of a line."""
    return (found[0].strip() for found in _SENTENCE.finditer(text) if words(found[0], 1))


def content(tokens: Iterable[str]) -> list[str]:
    """The stems of the content words, in order, with repeats."""
    return [stem(word) for word in tokens if word not in CLASS_OF]


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """A crude stem: `stopping`, `stopped` and `stops` have the same one."""
    word = word.removesuffix("'s")
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM:
            word = word[: -len(ending)]
            break
    if len(word) > _MIN_STEM and word[-1] == word[-2]:
        word = word[:-1]
    return word[:-1] if len(word) > _MIN_STEM and word[-1] in "eiy" else word


def grams(tokens: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """All runs of that many words, in order, with repeats."""
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


def loose_grams(tokens: Sequence[str]) -> set[tuple[str, ...]]:
    """All runs of three words, also those with a word left out between two of them."""
    steps = ((1, 2), (1, 3), (2, 3), (2, 4))
    return {
        (tokens[i], tokens[i + one], tokens[i + two])
        for one, two in steps
        for i in range(len(tokens) - two)
    }
