"""What a run may set about this task: `--set options.scenario=rest_trap`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from orchestry import Frozen


class Options(Frozen):
    """The settings of Bucket Brigade."""

    scenario: str = "default"
    """A scenario that ships, or a .json file with one."""
    agents: int = Field(4, ge=1, le=10)
    rules: Mapping[str, Any] = {}
    """Fields of the scenario that this run changes: `options.rules.num_houses=6`."""
    max_nights: int = Field(100, ge=1)
    """The game is cut off after so many; upstream never does."""
