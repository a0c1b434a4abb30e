"""Markdown of what tasks and models wrote: their text stays text, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from orchestry.report.words import plain

LONGEST = 1200
"""Characters of a quoted text."""
_MEANS = re.compile(
    r"([\\`*|~$]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|\[(?=\^)|(?<=^)(?:[\[#]|[-+=]+(?=\s|$)))"
    r"|([<>&])|(^\d+)([.)])(?=\s|$)|(@|://|(?<=www)\.)"
)
"""Characters that mean something to Markdown where they stand; those of HTML; a number that would
open a list; and what makes an address a link."""
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_BACKTICKS = re.compile(r"`+")


def inline(text: str, longest: int = 200) -> str:
    """A text in one line that Markdown shows as it is, in a table's cell too.

    >>> inline("a|b <b>*c*</b>")
    'a\\\\|b &lt;b&gt;\\\\*c\\\\*&lt;/b&gt;'
    """
    flat = _shortened(" ".join(plain(text).split()), longest)
    return _MEANS.sub(_escape, flat)


def _escape(found: re.Match[str]) -> str:
    mark, entity, number, dot, link = found.groups()
    if mark:
        return f"\\{mark}"
    if entity:
        return _ENTITIES[entity]
    return f"{number}\\{dot}" if number else "".join(f"&#{ord(char)};" for char in link)


def fenced(text: str, longest: int = LONGEST, language: str = "text") -> str:
    """A text in a code block, whose fence is longer than any run of backticks in it."""
    shown = _shortened(plain(text), longest)
    runs = [len(run) for run in _BACKTICKS.findall(shown)]
    fence = "`" * max(3, *(length + 1 for length in runs), 0)
    return f"{fence}{language}\n{shown}\n{fence}"


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    left = len(text) - longest
    return f"{text[:longest].rstrip()} … ({left:,} more characters)"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], figures: bool = True) -> str:
    """A table, its first column to the left and all others, where they hold figures, to the right.
    Cells stand as they are: what a task or a model wrote goes through `inline` first."""
    others = "---:" if figures else "---"
    lines = [list(header), ["---", *[others] * (len(header) - 1)], *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def bullets(items: Iterable[str]) -> str:
    """A list, an item a line."""
    return "\n".join(f"- {item}" for item in items)
