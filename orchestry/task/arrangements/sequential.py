"""Sequential pipeline: agents who would act at once act one after another, and read what came.

Of the baselines of MAGRPO (arXiv 2508.04652, section 5). Turns and what an agent is told between
them are the task's own; a task whose agents act in order already is played as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestry.core.types import Score
from orchestry.task.arrangements.wrapped import Gathered, Wrapped


class Sequential(Wrapped):
    """Answers of one joint action are gathered one by one, then given to the task together."""

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        moved = {agent for agent, _ in state.answers}
        waiting = [agent for agent in self.task.to_act(state.inner) if agent not in moved]
        return tuple(waiting[:1])

    def observe(self, state: Gathered, agent: str) -> str:
        asked = self.task.observe(state.inner, agent)
        if not state.answers:
            return asked
        return f"{asked}\n\nWritten before you, by the rest of your team:\n\n{state.shown(agent)}"

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        state = replace(state, answers=(*state.answers, *actions.items()))
        if self.to_act(state):
            return state
        return replace(state, inner=self.task.step(state.inner, dict(state.answers)), answers=())

    def told(self, state: Gathered, score: Score) -> Gathered:
        """See BaseTask: between two joint actions only, as the task would tell it."""
        return state if state.answers else replace(state, inner=self.task.told(state.inner, score))
