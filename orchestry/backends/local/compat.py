"""What CoMLRL 1.4.3 takes its loss of: to compare with it on equal gradients, not to learn by.

`MAGRPOTrainer._compute_loss_with_gradients` there sums, at temperature 1 whatever the answers were
drawn at, the log-probabilities of rows that are padded to the longest answer of their group, less
the last column. So padding behind a shorter answer is trained, and the end of the longest is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from orchestry.backends.local.logprobs import Packed

TEMPERATURE = 1.0


def as_comlrl(
    groups: Sequence[Packed], advantages: Sequence[float], pad_id: int
) -> tuple[list[Packed], list[float]]:
    """The tokens that it trains of these answers, and their advantages, one an answer.

    A group holds all answers to its prompt, or the longest would not be known. A group whose
    longest answer has one token has nothing left to train, and falls out.
    """
    kept, own = list[Packed](), list[float]()
    left = iter(advantages)
    for group in groups:
        mine = list(islice(left, len(group.completions)))
        if width := max(map(len, group.completions)) - 1:
            rows = tuple((*ids, *[pad_id] * width)[:width] for ids in group.completions)
            kept.append(replace(group, completions=rows))
            own += mine
    return kept, own
