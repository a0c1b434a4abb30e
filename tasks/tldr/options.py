"""What a run may set about this task: `--set options.bank=tldr`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from orchestry import prose

Bank = Literal["own", "tldr"]


class Options(prose.PairBounds):
    """The settings of the writing task; the numbers are those of MAGRPO's TLDR reward."""

    bank: Bank = "own"
    """The posts: those beside this file, or those of trl-lib/tldr."""
    path: Path | None = None
    """A local file or folder of the bank; None: its own, or fetched by the extra `datasets`."""
    rows: int = Field(1000, ge=1)
    """How many posts of the data set are taken, from its start: it has over 100,000."""
    min_words: prose.Words = 8
    max_words: prose.Words = 256
    ratio: prose.Four = (1.1, 1.6, 3.2, 5.0)
    unique: tuple[prose.Positive, prose.Positive] = (1.3, 2.0)
    jaccard: prose.Share = 0.03
