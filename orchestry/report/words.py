"""Figures, and texts of others, as people are shown them: dollars, times, counts, plain signs."""

from __future__ import annotations

import re

_STEERING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)
"""Characters that a terminal acts on: C0 and C1 controls, and those that turn the writing round."""


def tame(text: str) -> str:
    """A text of anybody, as it may reach a terminal: what would steer it is shown as an escape,
    which JSON reads as the character itself.

    >>> tame("a\\x1b[2Jb\\u202ec\\r\\n\\td")
    'a\\\\u001b[2Jb\\\\u202ec\\r\\n\\td'
    """
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def dollars(value: float) -> str:
    """To a hundredth of a cent."""
    return f"{value:,.4f} USD"


def duration(seconds: float) -> str:
    """In the largest units that say it.

    >>> duration(59.4), duration(575.7), duration(7300)
    ('59 s', '9 min 36 s', '2 h 1 min')
    """
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form.

    >>> counted(1, "update"), counted(1200, "episode")
    ('1 update', '1,200 episodes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def plain(text: str) -> str:
    """A text without characters that steer a terminal or turn the writing round; lines stay.

    >>> plain("a\\x1b[2Jb\\u202ec\\r\\n d\\n")
    'a [2Jb c\\n d'
    """
    lines = text.replace("\r\n", "\n").strip("\n").expandtabs(4)
    return "".join(char if char.isprintable() or char == "\n" else " " for char in lines).rstrip()
