"""What a run may set about this task: `--set options.bank=arxiv`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from orchestry import prose

Bank = Literal["own", "arxiv"]


class Options(prose.PairBounds):
    """The settings of abstract expansion; the numbers are those of MAGRPO's arXiv reward, with
    three words for four of its tokens."""

    bank: Bank = "own"
    """The abstracts: those beside this file, or those of OpenMLRL/arXiv_abstract."""
    path: Path | None = None
    """A local file or folder of the bank; None: its own, or fetched by the extra `datasets`."""
    rows: int = Field(1000, ge=1)
    """How many abstracts of the data set are taken, from its start."""
    splits: Literal["hashed", "published"] = "hashed"
    """By a hash of the abstract; or the paper's: `rows` of the data set's train for train and dev,
    and `rows` of its val for test."""
    min_words: prose.Words = 96
    max_words: prose.Words = 192
    ratio: prose.Four = (0.8, 1.3, 1.6, 2.0)
    unique: prose.Four = (0.5, 0.7, 1.3, 1.7)
    jaccard: prose.Share = 0.23
