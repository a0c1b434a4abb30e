"""What answers are like before any has been seen: the prior of the dry run and of `fake`.

Lengths of answers are right-skewed and cut at `max_tokens`, so the prior is a lognormal with its
median at a fixed share of the limit. The spreads say how unsure of it the dry run is.
"""

from __future__ import annotations

import math
import random

MEDIAN_SHARE = 0.35
"""Median length of an answer, as a share of max_tokens."""
SIGMA = 0.6
"""Standard deviation of the log of the length."""
BYTES_PER_TOKEN = 4.0
INPUT_SIGMA = 0.08
"""Spread of the tokens that a model makes of a text, between models."""
LEAST_MEAN = 0.1
"""Least mean length of a run's answers, as a share of max_tokens, that is still likely: below it
max_tokens is much too large, and at one it is the length itself."""
VERBOSITY = math.sqrt(LEAST_MEAN) / (MEDIAN_SHARE * math.exp(SIGMA**2 / 2))
"""Centre of the factor by which a run's mean length differs from that of the prior's answers. It
puts the centre of the means in the middle, on a log scale, of LEAST_MEAN and one."""
MODEL_SIGMA = 0.8
"""Spread of the log of that factor, between models and tasks: one draw a run. The mean of 17 of 20
runs lies between LEAST_MEAN and one. Chosen among 0.7, 0.8 and 0.9 as the least that held nine of
ten of 76 runs whose seeds benchmarks/guarantees/dry_run.py does not use."""
AGENT_SIGMA = 0.35
"""Spread of the mean length of answers between the agents of one run."""
MOST_REPEATS = 0.4
"""Share of samples that repeat the one before: none in half of the runs, else evenly drawn below
this. Siblings in equal states are one in a beam; independent chains tie and are judged."""
LOST_SHARE = 0.02
"""Share of attempts that are charged at their worst case and never answered: the mean of an
exponential, one draw a run."""
STRUCTURED_CENTRE, STRUCTURED_SIGMA = 1.4, 0.4
"""Factor by which structured answers are longer than random ones of the same schema: a lognormal,
one draw a run. A verdict with sentences of 25 words is twice as long as one of the random words
that `fake` answers with."""
MALFORMED_SHARE = 0.03
"""Share of structured answers that can't be read: the mean of an exponential, one draw a run."""
MOST_LIFT = 0.1
"""Most that a candidate gains or loses, in the mean of the episodes in which it changes anything:
evenly drawn between the two for each candidate."""
LONGEST_TOKEN = 16
"""Bytes of text that a token of an answer brings into later prompts at most, over an answer.
Longer tokens exist (rows of spaces), but they are read back as few tokens as they were written."""
SHAPES = ("{}", "```python\n{}\n```")
"""Forms of an answer. Tasks that show the next agent only the code of an answer would hide all of
one without a fence; others may hide what is fenced."""

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
