"""What a run may set about this task: `--set options.turns=2`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from orchestry import generated

Acting = Literal["joint", "sequential"]
Feedback = Literal["none", "levels", "failure"]


class Options(generated.Bank):
    """The settings of code collaboration."""

    acting: Acting = "joint"
    """Both agents at once, neither seeing the other's code; or the helper first, shown to main."""
    turns: int = Field(1, ge=1, le=16)
    """How often each agent answers."""
    feedback: Feedback = "failure"
    """What an agent learns of the turn before: nothing, how far the team came, or also the first
    failing call."""
    hubs: ClassVar[Sequence[str]] = ("humaneval", "coophumaneval")
