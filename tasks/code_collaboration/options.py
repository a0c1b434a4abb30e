"""What a run may set about this task: `--set options.turns=2`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from orchestry import Frozen

Acting = Literal["joint", "sequential"]
Feedback = Literal["none", "levels", "failure"]
Bank = Literal["own", "humaneval", "coophumaneval"]


class Options(Frozen):
    """The settings of code collaboration."""

    acting: Acting = "joint"
    """Both agents at once, neither seeing the other's code; or the helper first, shown to main."""
    turns: int = Field(1, ge=1, le=16)
    """How often each agent answers."""
    feedback: Feedback = "failure"
    """What an agent learns of the turn before: nothing, how far the team came, or also the first
    failing call."""
    bank: Bank = "own"
    """The problems: those beside this file, or those of a data set."""
    path: Path | None = None
    """A data set's own local file or folder; None: it is fetched by the extra `datasets`."""
