"""Words in an order that says nothing: what tricks on writing tasks are made of."""

from __future__ import annotations

import random
from collections.abc import Sequence


def shuffled(words: Sequence[str], count: int, seed: int) -> str:
    """So many of the words, or all, as one sentence in an order drawn from the seed."""
    return " ".join(random.Random(seed).sample(words, min(count, len(words)))).capitalize() + "."
