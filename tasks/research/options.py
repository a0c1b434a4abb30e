"""What a run may set about this task: `--set options.pool=20`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from orchestry import Frozen


class Options(Frozen):
    """The settings of the research task."""

    path: Path | None = None
    """A .jsonl file of problems of your own about the same notes; None: the bank."""
    pool: int = Field(10, ge=4, le=60)
    """Notes that the retriever chooses from."""
    picks: int = Field(4, ge=1, le=12)
    """Notes that reach the analyst: the first that the retriever names."""
    max_words: int = Field(60, ge=10)
    """Words that an answer may have without its citations."""
