"""What a run may set about this task: `--set options.bank=tldr`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from orchestry import Frozen

Bank = Literal["own", "tldr"]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Options(Frozen):
    """The settings of the writing task; the numbers are those of MAGRPO's TLDR reward."""

    bank: Bank = "own"
    """The posts: those beside this file, or those of trl-lib/tldr."""
    path: Path | None = None
    """A local file or folder of the bank; None: its own, or fetched by the extra `datasets`."""
    rows: int = Field(1000, ge=1)
    """How many posts of the data set are taken, from its start: it has over 100,000."""
    min_words: int = Field(8, ge=1)
    max_words: int = Field(256, ge=1)
    """Words that each text may have."""
    ratio: tuple[Positive, Positive, Positive, Positive] = (1.1, 1.6, 3.2, 5.0)
    """Characters of the detailed text for one of the concise text: where the slope up starts, the
    plateau from and to, and where the slope down ends."""
    unique: tuple[Positive, Positive] = (1.3, 2.0)
    """The same for distinct content words: where the slope starts, and where it is up."""
    jaccard: float = Field(0.03, gt=0.0, le=1.0)
    """Share of content words in common from which there is no more to gain."""

    @model_validator(mode="after")
    def _in_order(self) -> Options:
        for name in ("ratio", "unique"):
            found = getattr(self, name)
            if any(a >= b for a, b in pairwise(found)):
                raise ValueError(f"{name} must rise from number to number, but is {found}")
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is over max_words {self.max_words}")
        return self
