"""Rewards of others' environments, which have bounds of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import ClassVar

from orchestry.core.errors import TaskError
from orchestry.core.types import Score, StateT
from orchestry.task.base import BaseTask


class Earning(BaseTask[StateT]):
    """A task whose reward is one agent's return, or the mean of several, between two bounds."""

    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0
    """The least and greatest return; the reward is where it lies between."""
    earner: ClassVar[str] = ""
    """The role whose return counts, for games against each other; '': the mean of all that the
    environment rewards."""

    def earned(
        self,
        returns: Mapping[str, float],
        counted: Collection[str],
        feedback: str = "",
        tags: Sequence[str] = (),
    ) -> Score:
        """The score of these returns by role, of which those `counted` count if there is no
        `earner`. Raises TaskError if one of them is missing or their mean lies outside the bounds.
        """
        counts = {self.earner} if self.earner else {*counted}
        if not counts or not counts <= {*returns}:
            wanted = ", ".join(sorted(counts)) or "nobody"
            raise TaskError(
                f"task {self.name}: the reward is the return of {wanted}, and only "
                f"{', '.join(returns) or 'nobody'} had one: name another earner"
            )
        found = fmean(returns[role] for role in sorted(counts))
        if not self.low <= found <= self.high:
            raise TaskError(
                f"task {self.name}: a reward of {found:g} is not between low={self.low:g} and "
                f"high={self.high:g}: set both to the environment's least and greatest"
            )
        share = (found - self.low) / (self.high - self.low)
        values = {next(iter(self.part_weights)): share}
        own = tuple(returns.get(spec.role, self.low) for spec in self.agents)
        score = self.score(feedback=feedback, tags=tags, **values)
        return score.model_copy(update={"returns": own})
