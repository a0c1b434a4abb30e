"""What a run may set about this task: `--set options.hardest=2`."""

from __future__ import annotations

from pydantic import Field

from orchestry import Frozen


class Options(Frozen):
    """The settings of the code review task."""

    hardest: int = Field(5, ge=1, le=5)
    """Only problems of this grade or easier: 1 is one expression, 5 dynamic programming."""
