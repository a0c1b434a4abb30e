"""What a run may set about this task: `--set options.rounds=2`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from orchestry import Frozen


class Options(Frozen):
    """The settings of a story that is written, edited and told."""

    path: Path | None = None
    """A file of problems of this task's kind; None: its own."""
    rounds: int = Field(1, ge=1, le=3)
    """Parts that the story is written and edited in, one after the other, before it is told."""
    min_words: int = Field(80, ge=3)
    max_words: int = Field(240, ge=3)
    """Words that the whole story may have; each of its parts has its share of both."""
    min_told: int = Field(40, ge=3)
    max_told: int = Field(160, ge=3)
    """Words that the telling may have."""

    @model_validator(mode="after")
    def _in_order(self) -> Options:
        for low, high in (("min_words", "max_words"), ("min_told", "max_told")):
            found = getattr(self, low), getattr(self, high)
            if found[0] > found[1]:
                raise ValueError(f"{low} {found[0]} is over {high} {found[1]}")
        return self
