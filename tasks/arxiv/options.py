"""What a run may set about this task: `--set options.bank=arxiv`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from orchestry import Frozen

Bank = Literal["own", "arxiv"]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Options(Frozen):
    """The settings of abstract expansion; the numbers are those of MAGRPO's arXiv reward, with
    three words for four of its tokens."""

    bank: Bank = "own"
    """The abstracts: those beside this file, or those of OpenMLRL/arXiv_abstract."""
    path: Path | None = None
    """A local file or folder of the bank; None: its own, or fetched by the extra `datasets`."""
    rows: int = Field(1000, ge=1)
    """How many abstracts of the data set are taken, from its start."""
    min_words: int = Field(96, ge=1)
    max_words: int = Field(192, ge=1)
    """Words that each text may have."""
    ratio: tuple[Positive, Positive, Positive, Positive] = (0.8, 1.3, 1.6, 2.0)
    """Characters of the second text for one of the first: where the slope up starts, the plateau
    from and to, and where the slope down ends."""
    unique: tuple[Positive, Positive, Positive, Positive] = (0.5, 0.7, 1.3, 1.7)
    """The same for distinct content words."""
    jaccard: float = Field(0.23, gt=0.0, le=1.0)
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
