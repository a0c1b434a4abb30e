"""How long answers are before any has been seen: the prior of the dry run and of `fake`.

Lengths of answers are right-skewed and cut at `max_tokens`, so the prior is a lognormal with its
median at a fixed share of the limit.
"""

from __future__ import annotations

import math
import random

MEDIAN_SHARE = 0.35
"""Median length of an answer, as a share of max_tokens."""
SIGMA = 0.6
"""Standard deviation of the log of the length."""

WORDS = ("the", "and", "but", "for", "run", "set", "map", "key", "sum", "let", "try", "end")


def output_prior(max_tokens: int) -> tuple[float, float]:
    """(mu, sigma) of the lognormal over output tokens; a draw is clipped to [1, max_tokens].

    >>> mu, sigma = output_prior(100)
    >>> round(math.exp(mu)), sigma
    (35, 0.6)
    """
    return math.log(MEDIAN_SHARE * max_tokens), SIGMA


def clip_tokens(length: float, max_tokens: int) -> int:
    """A drawn length as a whole number of tokens in [1, max_tokens]."""
    return max(1, min(max_tokens, round(length)))


def filler(tokens: int, rng: random.Random) -> str:
    """A text without sense that is `tokens` long: each word with its space makes four bytes."""
    return " ".join(rng.choices(WORDS, k=tokens))
