"""What passed tests are worth beyond chance, and how a call that failed is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestry.equality import compare

MAX_SHOWN = 120
"""Characters of a value in a prompt or in feedback."""


def beyond_chance(passed: int, total: int, chance: int) -> float:
    """Share of the tests passed beyond the `chance` ones that a constant answer passes; in [0, 1].

    Corrected for chance as in Cohen's kappa: (passed - chance) / (total - chance), at least 0.
    Tests that a constant answer passes tell nothing else apart: then all of them, or 0.
    """
    if chance >= total:
        return float(0 < total == passed)
    return max(0.0, (passed - chance) / (total - chance))


def best_constant(wanted: Sequence[Any]) -> int:
    """How many of the expected values the best constant answer equals; 0 of none."""
    return max((sum(compare(value, answer) for value in wanted) for answer in wanted), default=0)


def called(name: str, args: Sequence[Any]) -> str:
    """A call as it would be written, long arguments cut."""
    return f"{name}({', '.join(map(shown, args))})"


def shown(value: Any, most: int = MAX_SHOWN) -> str:
    """A value in Python's words, cut after `most` characters."""
    try:
        return cut(repr(value), most)
    except ValueError:  # an int of too many digits, on its own or in a container
        return "a value with an integer too long to print"


def cut(text: str, most: int = MAX_SHOWN) -> str:
    """At most so many characters of a text, and a mark where there were more."""
    return text if len(text) <= most else f"{text[:most]}..."
