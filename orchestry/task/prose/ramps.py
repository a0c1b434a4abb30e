"""Numbers in [0, 1] without cliffs: ramps, plateaus, and levels that open one another. Pure."""

from __future__ import annotations

from collections.abc import Mapping

Span = tuple[float, float]
Plateau = tuple[float, float, float, float]
"""Where the slope up starts, the plateau from and to, and where the slope down ends."""

OPEN_AT = 0.5
"""The value of a level from which the levels after it count in full."""
FOOT = 0.1
"""What the ends of a plateau's slopes are worth, so that a gentler slope leads up to them."""


def ramp(value: float, span: Span) -> float:
    """0 at the first number and 1 at the second, linear between, flat outside; may fall."""
    start, end = span
    return min(1.0, max(0.0, (value - start) / (end - start)))


def plateau(value: float, spans: Plateau) -> float:
    """1 on the plateau, `FOOT` at the ends of its slopes, 0 from half of the first end and from
    double the last on."""
    start, low, high, end = spans
    inner = ramp(value, (start, low)) * ramp(value, (end, high))
    outer = ramp(value, (start / 2, start)) * ramp(value, (2 * end, end))
    return FOOT * outer + (1 - FOOT) * inner


def opened(levels: Mapping[str, float], counts: float) -> dict[str, float]:
    """The levels in order, scaled by `counts` and each by those before it: a level opens the next
    in proportion, and in full from `OPEN_AT` on."""
    found = {}
    for name, value in levels.items():
        found[name] = counts * value
        counts *= min(1.0, value / OPEN_AT)
    return found
