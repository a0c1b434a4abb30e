"""Naive concatenation: each agent answers once, in parallel; their answers are put together.

Of the baselines of MAGRPO (arXiv 2508.04652, section 5). Nobody sees what another wrote, also where
the task would show it, and nobody is told how a turn went.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestry.task.arrangements.wrapped import Gathered, Wrapped, played, roles


class Concat(Wrapped):
    """All act at once in the first state; the task then plays their answers in its own order."""

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return () if self.over(state) else roles(self.agents)

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        return played(self.task, state, actions)
