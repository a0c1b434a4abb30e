"""What a run may set about this task: `--set options.hardest=2`."""

from __future__ import annotations

from pydantic import Field

from orchestry import Frozen

GRADES = (1, 5)
"""The easiest and the hardest."""


class Options(Frozen):
    """The settings of the code review task."""

    hardest: int = Field(GRADES[1], ge=GRADES[0], le=GRADES[1])
    """Only problems of this grade or easier: 1 is one expression, 5 dynamic programming."""
