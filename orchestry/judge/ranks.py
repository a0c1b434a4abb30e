"""Comparing orders: the sign of a pair, and rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence


def sign(first: float, second: float) -> int:
    """+1, 0 or -1; numbers that differ by a rounding error tie."""
    return 0 if math.isclose(first, second, abs_tol=1e-9) else (1 if first > second else -1)


def spearman(left_G: Sequence[float], right_G: Sequence[float]) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where one side is all tied."""
    a, b = ranks(left_G), ranks(right_G)
    scale = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / scale if scale else 0.0


def ranks(values_G: Sequence[float]) -> list[float]:
    """Ranks about their mean: half of how many are below less how many are above."""
    return [sum(sign(value, other) for other in values_G) / 2.0 for value in values_G]
