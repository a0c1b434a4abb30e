"""One fixed model alone: it writes every agent's part in one answer.

Of the baselines of MAGRPO (arXiv 2508.04652, section 5). It is given all that the agents are told
and may write as much as they may together; a heading begins each part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestry.core.types import AgentSpec, Score, Tools
from orchestry.task.arrangements.wrapped import Gathered, Wrapped, played, roles
from orchestry.task.base import BaseTask

ALONE = "alone"
"""Its role."""
NO_PARTS = "no_parts"
"""The tag of an answer without any heading."""
SYSTEM = (
    "You do the work of a whole team alone, and write every part yourself: {roles}. Begin each "
    "part with its heading.\n\n{parts}"
)


class Fixed(Wrapped):
    """One agent acts once; its answer is shared out among the team by its headings."""

    def __init__(self, task: BaseTask[Any], prompts: Sequence[str]) -> None:
        """`prompts`: the run's system prompts of the task's agents, in their order."""
        super().__init__(task)
        team = roles(task.agents)
        parts = (f"{heading(who)}\n{text}" for who, text in zip(team, prompts, strict=True))
        prompt = SYSTEM.format(roles=", ".join(team), parts="\n\n".join(parts))
        vars(self).update(agents=(AgentSpec(role=ALONE, system_prompt=prompt),), team=team)

    team: tuple[str, ...]

    def to_act(self, state: Gathered) -> tuple[str, ...]:
        return () if self.over(state) else (ALONE,)

    def observe(self, state: Gathered, agent: str) -> str:
        asked = {role: self.task.observe(state.inner, role) for role in self.team}
        if len(set(asked.values())) == 1:
            told = asked[self.team[0]]
        else:
            told = "\n\n".join(f"{heading(role)}\n{text}" for role, text in asked.items())
        wanted = "\n".join(f"{heading(role)}\n..." for role in self.team)
        return f"{told}\n\nAnswer with these parts, each under its heading:\n\n{wanted}"

    def step(self, state: Gathered, actions: Mapping[str, str]) -> Gathered:
        answers = shared_out(actions[ALONE], self.team)
        ended = played(self.task, state, answers)
        return replace(ended, answers=tuple(actions.items()))

    async def evaluate(self, state: Gathered, tools: Tools) -> Score:
        """As the task says; an answer without headings is counted, since it may be why."""
        score = await super().evaluate(state, tools)
        if not state.answers or headings(self.team).search(state.by(ALONE)):
            return score
        return score.model_copy(update={"tags": (*score.tags, NO_PARTS)})


def heading(role: str) -> str:
    """What begins a part."""
    return f"## {role}"


def headings(team: Sequence[str]) -> re.Pattern[str]:
    """Finds the lines that begin a part; the role is its group."""
    names = "|".join(re.escape(role) for role in sorted(team, key=len, reverse=True))
    return re.compile(rf"^[ \t#*]*({names})[ \t*:#]*$", re.IGNORECASE | re.MULTILINE)


def shared_out(answer: str, team: Sequence[str]) -> dict[str, str]:
    """Each agent's part: what stands under its heading, the last one where there are several.

    A heading is a line with the role alone, but for #, *, : and white space. An answer without any
    heading is everyone's: what a role looks for, such as its function, may stand anywhere in it.
    """
    pieces = headings(team).split(answer)
    if len(pieces) == 1:
        return dict.fromkeys(team, answer)
    by_name = {role.lower(): role for role in team}
    found = dict.fromkeys(team, "")
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        found[by_name[name.lower()]] = text.strip("\n")
    return found
