"""What a run may set about this task: `--set options.turns=2`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from orchestry import generated

Acting = Literal["joint", "sequential"]
Feedback = Literal["none", "levels", "failure"]
ROLES = ("helper", "helper2", "helper3")
"""Up to three helpers."""


class Options(generated.Bank):
    """The settings of code collaboration."""

    needs: ClassVar[Sequence[str]] = ("entry_point", "signature")
    acting: Acting = "joint"
    """Both agents at once, neither seeing the other's code; or the helper first, shown to main."""
    helpers: int = Field(1, ge=1, le=3)
    """How many helpers each write a function for main: aux, aux2, aux3. With 2 or 3, the problems
    must have as many parts, as those of options.bank=generated have."""
    reviewer: bool = False
    """Whether, in each turn, a reviewer reads all the code, and main then writes again."""
    turns: int = Field(1, ge=1, le=16)
    """How often each agent answers."""
    feedback: Feedback = "failure"
    """What an agent learns of the turn before: nothing, how far the team came, or also the first
    failing call."""
    named: ClassVar[Sequence[str]] = ("named",)
    hubs: ClassVar[Sequence[str]] = ("humaneval", "coophumaneval", "leetcode")
