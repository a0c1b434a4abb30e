"""One section taken apart: its description, its entries on parameters, and its examples. Pure.

Entries are lines such as `low: the smallest value`, `- low (int): ...` or `:param low: ...`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .module import KINDS, Name

_HEADER = re.compile(
    r"\s*[#*_`:]*(?P<kind>args|arguments|parameters|params|attributes|returns?|yields|raises|"
    r"examples?|usage|notes?)[*_`]*\s*(?P<colon>:?)[*_`]*\s*(?P<rest>.*)$",
    re.IGNORECASE,
)
_RULE = re.compile(r"\s*[-=~]{3,}\s*$")
_ENTRY = re.compile(
    r"\s*+(?P<mark>[-*+]\s++|:param\s++(?:\w++\s++)?)?[`*_]*+(?P<name>[A-Za-z]\w*+)[`*]*+"
    r"\s*+(?:\((?P<kind>[^)\n]*+)\))?[`*_]*+\s*+(?::|--|[\u2013\u2014]|-(?=\s))[`*_]*+\s*+(?P<said>.*)$"
)
_LISTS = ("args", "arguments", "parameters", "params", "attributes")
_GIVES = dict.fromkeys(("return", "returns", "yields"), "It returns")
_VERBS = {**_GIVES, "raises": "It raises"}


@dataclass(slots=True)
class Section:
    """What is said of one name."""

    description: str = ""
    entries: dict[str, str] = field(default_factory=dict)
    """What is said of each parameter in an entry of its own; '' if that is nothing."""
    kinds: dict[str, str] = field(default_factory=dict)
    """The kind that an entry gives its parameter, one of module.KINDS."""
    unknown: list[str] = field(default_factory=list)
    """Parameters that are described and do not exist."""
    examples: str = ""

    @property
    def text(self) -> str:
        """All but the examples."""
        return "\n".join((self.description, *self.entries.values()))


def read(text: str, name: Name) -> Section:
    """The section, line by line."""
    found, prose = Section(), list[str]()
    heading = entry = ""
    example = False
    for line in text.splitlines():
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if example:
            found.examples += f"{line}\n"
            continue
        if not line.strip() or _RULE.match(line):
            found.examples += "\n"
            entry = ""
            continue
        if header := _header(line, name):
            heading, entry = header[0], ""
            line = header[1]
        elif opened := _entry(line, name, listed=heading in _LISTS):
            entry = _note(found, opened, name)
            continue
        elif entry and line[:1] in " \t":
            found.entries[entry] = f"{found.entries[entry]} {line.strip()}".strip()
            continue
        if line.strip():
            entry = ""
            prose.append(_sentence(heading, line.strip()))
            heading = heading if heading in _LISTS else ""
    found.description = "\n".join(prose).strip()
    return found


def _entry(line: str, name: Name, *, listed: bool) -> re.Match[str] | None:
    """A line on one parameter: any that exists, and in a list of parameters any at all."""
    found = _ENTRY.match(line)
    if found is None:
        return None
    declared = listed or (found["mark"] or "").startswith(":param")
    return found if declared or found["name"] in name.params else None


def _note(section: Section, entry: re.Match[str], name: Name) -> str:
    """Keeps an entry; returns the parameter that following lines may go on about."""
    param = entry["name"]
    if param not in name.params:
        section.unknown.append(param)
        return ""
    section.entries[param] = entry["said"].strip()
    words = re.findall(r"[a-z]+", (entry["kind"] or "").lower())
    if words and words[0] in KINDS and "or" not in words:
        section.kinds[param] = KINDS[words[0]]
    return param


def _header(line: str, name: Name) -> tuple[str, str] | None:
    """The kind of a heading and the rest of its line; None for other lines."""
    found = _HEADER.match(line)
    if found is None or (found["rest"] and not found["colon"]) or found["kind"] in name.params:
        return None
    return found["kind"].lower(), found["rest"]


def _sentence(heading: str, said: str) -> str:
    """What stands below a heading as a sentence, where the heading is its verb."""
    if heading not in _VERBS:
        return said
    return f"{_VERBS[heading]} {said}"
