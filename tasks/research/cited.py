"""A text as sentences, each with the notes that it cites. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = re.compile(r"\bN\d{1,3}\b")
_IDS = r"[\[(]?\s{0,3}N\d{1,3}(?:\s{0,3}(?:,|;|and|&)\s{0,3}N\d{1,3})*+\s{0,3}[\])]?"
_BEHIND = re.compile(r"([.!?])((?:\s{0,3}[\[(]\s{0,3}N\d[^\])\n]{0,80}[\])])+)")
"""Citations behind the full stop of their sentence."""
_CITED = re.compile(rf"(?:\s{{0,3}}\b(?:from|[Ss]ee|in|[Nn]ote|[Ss]ource))?\s{{0,3}}{_IDS}")
_OPENED = re.compile(rf"\s{{0,3}}(?:[-*+]\s|\d+[.)]\s)?\s{{0,3}}{_IDS}\s?[:\-]\s")
_ENDS = re.compile(r"(?<=[.!?])\s+(?=\S)")
_MARK = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")


MAX_CHARS = 3000
"""Characters of a text that are read; twice what any text may have."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence without its citations, and the ids that it cites, each once."""

    text: str
    ids: tuple[str, ...]


def ids(text: str) -> tuple[str, ...]:
    """The ids that a text names, in order, each once."""
    return tuple(dict.fromkeys(_ID.findall(text[:MAX_CHARS])))


def sentences(text: str) -> tuple[Sentence, ...]:
    """The sentences of a text. One without an end mark ends with its line.

    An id that a line starts with (`N12: ...`) holds for all of it.
    """
    found = []
    for line in _BEHIND.sub(r"\2\1", text[:MAX_CHARS]).splitlines():
        opened = _OPENED.match(line)
        given = ids(opened[0]) if opened else ()
        for raw in _ENDS.split(line[opened.end() :] if opened else line):
            plain = _MARK.sub("", _CITED.sub("", raw)).strip()
            if any(char.isalnum() for char in plain):
                found.append(Sentence(re.sub(r"\s+([.,;!?])", r"\1", plain), ids(raw) or given))
    return tuple(found)


def uncited(text: str) -> str:
    """The text without its citations."""
    return " ".join(sentence.text for sentence in sentences(text))
