"""What a run may set about two texts that are measured together."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from orchestry.core.types import Frozen

Words = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Four = tuple[Positive, Positive, Positive, Positive]
"""Where a slope up starts, the plateau from and to, and where the slope down ends."""
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class PairBounds(Frozen):
    """Lengths, and slopes of what one text has for each of the other's; a task gives the numbers.

    Raises ValueError where a slope's numbers do not rise, or no length is allowed.
    """

    min_words: Words
    max_words: Words
    """Words that each text may have."""
    ratio: Four
    """Characters of the second text for one of the first."""
    unique: tuple[Positive, ...]
    """Distinct content words likewise; two numbers are a slope up without an end."""
    jaccard: Share
    """Share of content words in common from which there is no more to gain."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in ("ratio", "unique"):
            found = getattr(self, name)
            if any(a >= b for a, b in pairwise(found)):
                raise ValueError(f"{name} must rise from number to number, but is {found}")
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is over max_words {self.max_words}")
        return self
