"""Which agent a program's call is for: its address says so, or a header; else the model's name,
and where several agents have one model, the system prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestry.core.errors import TaskError
from orchestry.task.programs.wire import Unreadable, short

if TYPE_CHECKING:
    from orchestry.task.programs.agent_task import AgentTask, Ask

HEADER = "X-Orchestry-Agent"
TEAM = "v1"
"""In place of a role, in the address of the whole team."""


def role_of(task: AgentTask, named: str, model: str, ask: Ask) -> str:
    """The agent; `named`: by the address or the header, else ''. Raises TaskError where there is no
    such agent, Unreadable where several may be meant."""
    roles = [spec.role for spec in task.agents]
    found = [named] if named in roles else []
    if not named:
        found = roles if len(roles) == 1 else called(task, model)
    if not found:
        raise TaskError(
            f"the team has no agent {short(named or model)}, only {', '.join(roles)}: name one in "
            f"the address, in the header {HEADER} or as the model"
        )
    return found[0] if len(found) == 1 else _told(task, found, ask)


def named_by(place: str, header: str) -> str:
    """The agent that an address or a header names, else ''. Raises Unreadable for two."""
    if header and place not in (TEAM, header):
        raise Unreadable(
            f"the address names {short(place)} and the header {HEADER} {short(header)}: name one"
        )
    return header if place == TEAM else place


def called(task: AgentTask, model: str) -> list[str]:
    """The agents that a model's name means: those of this role, or whose model the program calls
    so; else those with that name but for a prefix such as openai/."""
    names = {spec.role: {spec.role, task.models.get(spec.role, spec.role)} for spec in task.agents}
    return [role for role, own in names.items() if model in own] or [
        role for role, own in names.items() if any(_same(one, model) for one in own)
    ]


def _same(one: str, other: str) -> bool:
    """Whether names are equal but for a prefix."""
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def _told(task: AgentTask, roles: Sequence[str], ask: Ask) -> str:
    """The only one of these that the system prompt speaks to. Raises Unreadable."""
    said = "\n".join(one.content for one in ask.messages if one.role == "system")
    found = [role for role in roles if _marked(said, role, task.marks.get(role))]
    if len(found) == 1:
        return found[0]
    which = ", ".join(found) or "none of them"
    raise Unreadable(
        f"{', '.join(roles)} have one model, and the system prompt names {which}: give each its "
        f"own address (ORCHESTRY_URL_...), the header {HEADER}, or `marks` in the task's file"
    )


def _marked(said: str, role: str, mark: str | None) -> bool:
    """Whether a system prompt holds an agent's mark; without one, its role as a word."""
    if mark is not None:
        return mark in said
    words = r"[\W_]+".join(map(re.escape, re.findall(r"[^\W_]+", role)))
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", said, re.IGNORECASE) is not None
