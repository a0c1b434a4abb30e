"""The team as a run asks it: each agent's prompt with what was learned, its model and limits."""

from __future__ import annotations

from typing import Any

from orchestry.backends.api.library import Library
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError, unknown
from orchestry.core.types import AgentSpec, Member
from orchestry.task.base import BaseTask


def team(task: BaseTask[Any], config: RunConfig, model: str, library: Library) -> dict[str, Member]:
    """The task's agents by role; raises ConfigError for a role that the task lacks."""
    roles = [spec.role for spec in task.agents]
    for role in config.agents:
        if role not in roles:
            raise ConfigError(unknown(f"agent of task {task.name}", role, roles))
    return {spec.role: _member(spec, config, model, library) for spec in task.agents}


def _member(spec: AgentSpec, config: RunConfig, model: str, library: Library) -> Member:
    own, sampling = config.agents.get(spec.role), config.sampling
    own_temperature = own.temperature if own else None
    return Member(
        role=spec.role,
        system_prompt=library.prompt(spec.role, config.system_prompt(spec)),
        model=(own and own.model) or model,
        max_tokens=(own and own.max_tokens) or sampling.max_tokens,
        temperature=sampling.temperature if own_temperature is None else own_temperature,
        stop=sampling.stop,
    )
