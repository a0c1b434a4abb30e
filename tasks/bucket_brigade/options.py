"""What a run may set about this task: `--set options.scenario=rest_trap`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from orchestry import Frozen, errors

from .scenario import Scenario, scenario


class Options(Frozen):
    """The settings of Bucket Brigade."""

    scenario: str = "default"
    """A scenario that ships, or a .json file with one."""
    agents: int | None = Field(None, ge=1, le=10)
    """None: as many as the scenario says, which is 4 for those that ship."""
    rules: Mapping[str, Any] = {}
    """Fields of the scenario that this run changes: `options.rules.num_houses=6`."""
    max_nights: int = Field(100, ge=1)
    """The game is cut off after so many; upstream never does."""

    def played(self) -> Scenario:
        """The scenario with all changes. Raises ConfigError for one that can't be played."""
        agents = {} if self.agents is None else {"num_agents": self.agents}
        found = scenario(self.scenario, {**self.rules, **agents})
        if self.max_nights <= found.min_nights:
            raise errors.ConfigError(
                f"options.max_nights={self.max_nights}: a game lasts more than "
                f"{found.min_nights} nights (min_nights): raise it to {found.min_nights + 1}"
            )
        return found
