"""Seeds computed from names, the same in every process and on every platform."""

from __future__ import annotations

import random
from hashlib import blake2b


def derive(*parts: object) -> int:
    """A 63-bit seed, computed from the texts of the parts alone."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def shuffled(count: int, *parts: object) -> list[int]:
    """The numbers below `count`, in an order computed from the parts."""
    order = list(range(count))
    random.Random(derive(*parts)).shuffle(order)
    return order
