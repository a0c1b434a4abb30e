"""A text as sentences, and whether they are any: keywords in a row have no words between them, and
shuffled words put a preposition behind an article. English only. Pure."""

from __future__ import annotations

import re
from itertools import pairwise

_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")
_WORDS = re.compile(r"`[^`\n]*`|[^\W_][\w'.,-]*")
_ARTICLES = "the a an each every its their"
_PREPOSITIONS = """
of in on at to for with by from through into onto over under within until since after
"""
_VERBS = "is are was were be been has have had does do did"
_OTHERS = """
it they this these those he she who when where if as not no all both before so more than we us our
you your up out there then and or but because that while which
"""
ARTICLES, VERBS = frozenset(_ARTICLES.split()), frozenset(_VERBS.split())
PREPOSITIONS = frozenset(_PREPOSITIONS.split())
LINKS = PREPOSITIONS | {"and", "or", "but", "because", "that", "while", "which"}
FUNCTION = ARTICLES | VERBS | PREPOSITIONS | frozenset(_OTHERS.split())
LAST = ARTICLES | {"of", "and", "or", "at"}
"""No sentence ends so."""
FEWEST, LEAST = 4, 0.08
"""Words from which a sentence has to be sound, and the share of function words that it needs."""


def sentences(text: str) -> list[str]:
    """The sentences of a text; a line end ends one too."""
    return [found for part in _ENDS.split(text) if (found := part.strip())]


def soundness(text: str) -> float:
    """The share of a text's words that stand in sound sentences; short labels don't count."""
    counts = [(len(_words(one)), sound(one)) for one in sentences(text)]
    whole = [(count, good) for count, good in counts if count >= FEWEST]
    total = sum(count for count, _ in whole)
    return sum(count for count, good in whole if good) / total if total else 0.0


def sound(sentence: str) -> bool:
    """Whether its words may be a sentence: enough function words, none out of its place."""
    words = _words(sentence)
    function = sum(word in FUNCTION for word in words)
    if not words or function / len(words) < LEAST or words[-1] in LAST:
        return False
    return not any(_apart(one, other) for one, other in pairwise(words))


def _apart(one: str, other: str) -> bool:
    """Whether two words can't be neighbours."""
    if one in ARTICLES:
        return other in ARTICLES | LINKS | VERBS or other == one
    return other == one in LINKS or (one in PREPOSITIONS and other in VERBS)


def _words(sentence: str) -> list[str]:
    return [word.strip(".,-").lower() for word in _WORDS.findall(sentence)]
