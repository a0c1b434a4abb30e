"""One-round discussion: each agent drafts, reads the others' drafts, and answers once more.

Of the baselines of MAGRPO (arXiv 2508.04652, section 5). Drafts and answers are written in
parallel; only the answers count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestry.task.arrangements.wrapped import Gathered, Wrapped, played, roles

ASK = (
    "Your draft:\n{own}\n\nThe drafts of the rest of your team:\n\n{others}\n\nNow write your "
    "final answer in the same form as your draft. Fit it to what the others wrote."
)


class Discussion(Wrapped):
    """Two stages in which all act at once: drafts, then the answers that the task is given."""

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return () if self.over(state) else roles(self.agents)

    def observe(self, state: Gathered, agent: str) -> str:
        asked = self.task.observe(state.inner, agent)
        if not state.answers:
            return asked
        return f"{asked}\n\n{ASK.format(own=state.by(agent), others=state.shown(agent))}"

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        if not state.answers:
            return replace(state, answers=tuple(actions.items()))
        return played(self.task, state, actions)
