"""Finds in an answer what is said of each public name; everything else of it is dropped. Pure.

An answer is the module with docstrings, whole or cut off, or sections under headings, or plain
sentences. Only texts are taken from it, never code: no document can change the module that its
examples are run on.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from orchestry import prose

from .module import Name

MAX_CHARS = 2400
"""Characters of a section that are read."""
MAX_ANSWER = 12_000
"""Characters of an answer that are read."""
MAX_HEADING = 200
"""Characters of a line that a heading may take."""
_DEFINITION = re.compile(r"^([ \t]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)", re.MULTILINE)
_QUOTES = re.compile(r"\"{3}|'{3}")
_CODE = re.compile(
    r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)|^[ \t]*>>>[^\n]*$", re.MULTILINE | re.DOTALL
)
_MENTION = re.compile(r"`([A-Za-z][\w.]*)(?:\([^`\n]*\))?`|\b([A-Za-z][\w.]*)\(")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")
_HEADING = re.compile(
    r"(?P<marks>[ \t]*+(?:[#*+\-]++[ \t]*+|\d++[.)][ \t]*+)*+)(?P<quote>[*_`]*+)"
    r"(?:(?:the|an?|def|function|method|class|property)[ \t]+)*[*_`]*"
    r"(?P<name>[A-Za-z]\w*(?:\.\w+)*)"
    r"(?P<call>\([^\n]*?\)(?:[ \t]*->[^:`*]*)?)?(?P<end>[*_`]*)"
    r"(?:[ \t]+(?:function|method|class|property))?[*_`]*[ \t]*"
    r"(?P<colon>:|-+[ \t]|[\u2013\u2014]|$)?[*_`]*",
    re.IGNORECASE,
)
"""A line that may open a section; `_opened` says whether it does."""


def sections(text: str, names: Iterable[Name], *, mentions: bool = False) -> dict[str, str]:
    """The text on each name that has one, by qualified name.

    With `mentions` a name without a section has the first sentence that speaks of it, if any does.
    """
    known, text = _known(names), text[:MAX_ANSWER]
    found: dict[str, list[str]] = {}
    for name, said in (*_docstrings(text, known), *_headed(text, known)):
        found.setdefault(name, []).append(said)
    for name, said in _mentioned(text, known) if mentions else ():
        found.setdefault(name, [said])
    whole = {name: "\n".join(said).strip("\n")[:MAX_CHARS] for name, said in found.items()}
    return {name: said for name, said in whole.items() if said.strip()}


def _known(names: Iterable[Name]) -> Mapping[str, str]:
    """Qualified names by what they may be called; a method's short name where no other has it."""
    whole = {name.qualified: name.qualified for name in names}
    short: dict[str, list[str]] = {}
    for qualified in whole:
        short.setdefault(qualified.rpartition(".")[2], []).append(qualified)
    return {**{name: owners[0] for name, owners in short.items() if len(owners) == 1}, **whole}


def _docstrings(text: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Docstrings that follow a definition, also in code that does not parse."""
    places = [*_DEFINITION.finditer(text)]
    ends = [*(place.start() for place in places[1:]), len(text)]
    owner, depth = "", -1
    for place, end in zip(places, ends, strict=False):
        indent, kind, name = len(place[1].expandtabs()), place[2], place[3]
        if indent <= depth:
            owner, depth = "", -1
        qualified = known.get(f"{owner}.{name}" if owner else name)
        if kind == "class":
            owner, depth = name, indent
        opened = _QUOTES.search(text, place.end(), end)
        if (
            opened
            and qualified
            and text[place.end() : opened.start()].rstrip(" \t\nrR")[-1:] == ":"
        ):
            doc = text[opened.end() :].partition(opened[0])[0]
            first, _, rest = doc.partition("\n")
            yield qualified, f"{first.strip()}\n{textwrap.dedent(rest)}"


def _headed(text: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What stands below each heading, line by line, up to the next one or to a definition."""
    name, example = "", False
    for line in text.splitlines():
        if _FENCE.match(line) or not line.strip():
            line, example = "", False
        example = example or line.lstrip().startswith(">>>")
        if _DEFINITION.match(line):
            name = ""
        elif (not example or line.startswith("#")) and (opened := _opened(line, name, known)):
            (name, line), example = opened, False
        if name:
            yield name, line


def _mentioned(text: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Sentences outside of code that speak of one name, in backticks or as a call."""
    for sentence in prose.sentences(_CODE.sub("\n", text)):
        calls = (one or other for one, other in _MENTION.findall(sentence))
        named = {known[name] for name in calls if name in known}
        if len(named) == 1 and not sentence.startswith((">>>", "def ", "class ")):
            yield named.pop(), sentence


def _opened(line: str, now: str, known: Mapping[str, str]) -> tuple[str, str] | None:
    """The name that a line opens a section on, and the rest of the line; None for other lines.

    A short name is first looked for in the class of the section that is open now.
    """
    found = _HEADING.match(line[:MAX_HEADING])
    if found is None:
        return None
    owned = known.get(f"{now.partition('.')[0]}.{found['name']}")
    name = owned or known.get(found["name"], "")
    marked = "#" in found["marks"] or found["quote"] or found["end"] or found["call"]
    if not name or not (marked or found["colon"] is not None):
        return None
    return name, line[found.end() :]
