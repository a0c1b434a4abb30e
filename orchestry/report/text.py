"""Text for people: safe Markdown, and numbers in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestry.store.records import Summary

_LONGEST = 1200
"""Maximum characters of a quoted text."""
_MEANS = re.compile(
    r"([\\`*|~$]|(?<![^\W_])_|_(?![^\W_])|\](?=[(\[:])|\[(?=\^)|(?<=^)(?:[\[#]|[-+=]+(?=\s|$)))"
    r"|([<>&])|(^\d+)([.)])(?=\s|$)|(@|://|(?<=www)\.)"
)
"""Markdown's special characters, HTML's, numbers that would start a list, and what would make an
address a link."""
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_BACKTICKS = re.compile(r"`+")


def inline(text: str, longest: int = 200) -> str:
    """A text as one line that Markdown shows unchanged, also in a table cell.

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


def fenced(text: str, longest: int = _LONGEST, language: str = "text") -> str:
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


def left_out(summary: Summary) -> str:
    """What no mean of a run has, and why, on one line; '' if they are over all."""
    lost, failed = (sum(one.values()) for one in (summary.left_out, summary.left_out_episodes))
    if not lost and not failed:
        return ""
    parts = [f"{lost} of {summary.trajectories + lost:,} trajectories"]
    parts += [f"{failed} of {counted(summary.episodes, 'episode')}"] if failed else []
    whys = summary.left_out or summary.left_out_episodes
    why = "; ".join(f"{count}: {_shortened(text, 160)}" for text, count in [*whys.items()][:3])
    return f"{' and '.join(parts)} ({why})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], figures: bool = True) -> str:
    """A table: the first column left-aligned, columns of figures right-aligned. Cells are not
    escaped; pass text of tasks and models through `inline` first."""
    others = "---:" if figures else "---"
    lines = [list(header), ["---", *[others] * (len(header) - 1)], *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def bullets(items: Iterable[str]) -> str:
    """A list, one item per line."""
    return "\n".join(f"- {item}" for item in items)


_STEERING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)
"""Characters that control a terminal: C0 and C1 controls, and changes of writing direction."""


def tame(text: str) -> str:
    """A text that is safe for a terminal: control characters become escapes, which JSON reads as
    the characters.

    >>> tame("a\\x1b[2Jb\\u202ec\\r\\n\\td")
    'a\\\\u001b[2Jb\\\\u202ec\\r\\n\\td'
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def dollars(value: float) -> str:
    """To a hundredth of a cent."""
    return f"{value:,.4f} USD"


def duration(seconds: float) -> str:
    """In the largest suitable units.

    >>> duration(59.4), duration(575.7), duration(7300)
    ('59 s', '9 min 36 s', '2 h 1 min')
    """
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def short(value: float) -> str:
    """With about four significant digits.

    >>> short(812.475), short(-28.4), short(12345.6), short(0.64317), short(0.0000107), short(0)
    ('812.5', '-28.40', '12,346', '0.6432', '1.1e-05', '0')
    """
    if not value:
        return "0"
    size = floor(log10(abs(value)))
    return f"{value:.1e}" if size < -4 else f"{value:,.{min(4, max(0, 3 - size))}f}"


def tick(value: float) -> str:
    """A round number of an axis.

    >>> tick(1_500_000), tick(20_000), tick(-250), tick(0.1 + 0.2), tick(0.00002)
    ('1.5M', '20k', '-250', '0.3', '2e-05')
    """
    size, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k") if abs(value) >= 1e4 else (1, "")
    return f"{value / size:.6g}{unit}"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form.

    >>> counted(1, "update"), counted(1200, "episode")
    ('1 update', '1,200 episodes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def plain(text: str) -> str:
    """A text without characters that control a terminal or change the writing direction; line
    breaks stay.

    >>> plain("a\\x1b[2Jb\\u202ec\\r\\n d\\n")
    'a [2Jb c\\n d'
    """
    lines = text.replace("\r\n", "\n").strip("\n").expandtabs(4)
    return "".join(char if char.isprintable() or char == "\n" else " " for char in lines).rstrip()
