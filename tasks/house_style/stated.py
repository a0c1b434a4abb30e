"""Whether a sentence states what its key words are about: all are there, with a verb that is used
as one, and are denied only where the house's sentence denies them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .sentences import ARTICLES, PREPOSITIONS, VERBS

_WORD = re.compile(r"[\w']+")
_INFLECTED = re.compile(r"[a-z]?(?:e|s|es|ed|d|ing|n|en)?")
"""What may stand behind the beginning of a verb: not the `er` of `printer`."""
_NOMINAL = ARTICLES | {"his", "her", "this", "these", "those", "any", "some", "no", "another"}
_BEFORE_NOUN = (PREPOSITIONS | {"about"}) - {"to", "after", "since", "until"}
_AUXILIARY = VERBS - {"do", "does", "did"}
_PARTICIPLE = ("ing", "ed", "en", "wn", "ld", "nt", "pt", "st", "ut", "uck", "ung")
"""Ends of `renewed`, `shown`, `sold`, `sent`, `kept`, `lost`, `cut`, `stuck`, `hung`."""
_SELDOM = "never seldom rarely hardly scarcely barely infrequently"
_DENIED = re.compile(
    rf"""\b(?: not | {"|".join(_SELDOM.split())} | no (?!\ longer) | cannot | \w+n't | without
    | neither | nor | none | nobody | nothing | nowhere | lack\w* | missing | unable\ to
    | instead\ of | rather\ than | far\ from | anything\ but | (?:den|doubt)(?:y|ies|ied|s|ed)?
    | (?:fail|pretend|refus|declin|ceas|forg[eo]t|omit|neglect|unlikely)\w*\ to
    | (?:stop|quit|ceas|avoid)\w*\ (?!during)\w+ing
    | (?:false|untrue|wrong|incorrect|impossible|unlikely|myth|lie|rumou?r)\ that )\b""",
    re.VERBOSE,
)
_BEHIND = re.compile(rf"\W+(?:\w+\W+)?(?:{'|'.join(_SELDOM.split())})\b")
"""Words that deny what stands before them."""
_OVER = re.compile(r"\bno longer\b")
_PAST = re.compile(r"\b(?:fix\w*|resolv\w*|solv\w*|previously|formerly|used to)\b")
"""Of a text that tells what was wrong as something that is over."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The key words of a sentence: where they start, and whether they are denied."""

    start: int
    denied: bool


def stated(sentence: str, keys: Sequence[str], verbs: str, own: str, *, over: bool) -> int | None:
    """Where the first key word stands, if all stand in the sentence beside one of the verbs, and
    are denied where those of the house's `own` sentence are. `over`: what no longer happens has
    happened."""
    found, house = _span(sentence, keys, verbs, over), _span(own, keys, verbs, over)
    if found is None or house is None or found.denied != house.denied:
        return None
    return found.start


def tells_the_past(text: str) -> bool:
    """Whether a text tells what was wrong as something that is over."""
    return _PAST.search(text.lower()) is not None


def _span(sentence: str, keys: Sequence[str], verbs: str, over: bool) -> _Span | None:
    """None if a key word or the verb is missing. A denial counts between them, before them, or
    right behind them if it is an adverb."""
    plain = sentence.lower().replace("\u2019", "'")
    words = [*_WORD.finditer(plain)]
    said = [match[0] for match in words]
    places = [_first(said, key) for key in keys]
    places += [_verb(said, tuple(verbs.split("|")))] if verbs else []
    found = [place for place in places if place is not None]
    if len(found) < len(places):
        return None
    end = words[max(found)].end()
    ended = not over and _OVER.search(plain[:end])
    denied = ended or _DENIED.search(plain[:end]) or _BEHIND.match(plain[end:])
    return _Span(words[min(found)].start(), bool(denied))


def _first(words: Sequence[str], key: str) -> int | None:
    stems = tuple(key.split("|"))
    return next((place for place, word in enumerate(words) if word.startswith(stems)), None)


def _verb(words: Sequence[str], stems: tuple[str, ...]) -> int | None:
    """Where a stem stands inflected, and where no noun stands."""
    for place, word in enumerate(words):
        forms = [stem for stem in stems if word.startswith(stem)]
        inflected = any(_INFLECTED.fullmatch(word.removeprefix(stem)) for stem in forms)
        before, after = (["", *words][place], [*words, ""][place + 1])
        if inflected and not _nominal(before, word, after):
            return place
    return None


def _nominal(before: str, word: str, after: str) -> bool:
    """Whether a noun stands between two words: behind an article, or behind a preposition, but for
    -ing (`without renewing`); beside an auxiliary, but for a participle."""
    if before in _NOMINAL:
        return True
    if before in _BEFORE_NOUN:
        return not word.endswith("ing")
    beside = before in _AUXILIARY or after in VERBS
    return beside and word not in VERBS and not word.endswith(_PARTICIPLE)
