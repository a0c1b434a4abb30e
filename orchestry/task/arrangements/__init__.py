"""What a team is compared with: by name, a schedule of calls, or another way to play the task.

A baseline is a schedule or a wrapped task over the same rollout, never a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from orchestry.core.config import AgentConfig, Arrangement, RunConfig
from orchestry.core.errors import ConfigError, reason
from orchestry.core.types import Problem
from orchestry.task.arrangements.concat import Concat
from orchestry.task.arrangements.discussion import Discussion
from orchestry.task.arrangements.fixed import ALONE, Fixed
from orchestry.task.arrangements.sequential import Sequential
from orchestry.task.arrangements.wrapped import Wrapped
from orchestry.task.base import BaseTask

BASELINES: Mapping[str, str] = {
    "fixed": "one model alone, which writes every agent's part in one answer",
    "best_of_n": "the untrained team's best of as many trajectories as the search's calls pay for",
    "concat": "each agent answers once, in parallel; nobody sees what another wrote",
    "sequential": "agents who would act at once act one after another, and read what came",
    "discussion": "each agent drafts, reads the others' drafts, and answers once more",
}
"""By name, in a line."""
ARRANGEMENTS: tuple[str, ...] = get_args(Arrangement)
_WRAPPERS: dict[str, Callable[[BaseTask[Any]], Wrapped]] = {
    "concat": Concat,
    "sequential": Sequential,
    "discussion": Discussion,
}


def arranged(config: RunConfig, task: BaseTask[Any]) -> tuple[RunConfig, BaseTask[Any]]:
    """The task in the arrangement that `config.baseline` names, and the config that fits it.

    Raises ConfigError for a task with one agent.
    """
    if config.baseline is None:
        return config, task
    if len(task.agents) < 2:
        raise ConfigError(
            f"task {task.name} has one agent, and baseline {config.baseline} is of a team: leave "
            "`baseline`"
        )
    if config.baseline == "fixed":
        alone = Fixed(task, [config.system_prompt(spec) for spec in task.agents])
        return _alone(config, alone), alone
    return config, _WRAPPERS[config.baseline](task)


def check_first_state(config: RunConfig, task: BaseTask[Any], problem: Problem) -> None:
    """Raises ConfigError where a baseline asks an agent in a state that the task can't show it."""
    if config.baseline is None:
        return
    state = task.reset(problem, 0)
    for agent in task.to_act(state):
        try:
            task.observe(state, agent)
        except Exception as error:  # a task's own code may raise anything
            raise ConfigError(
                f"baseline {config.baseline} asks agents before anyone has answered, and observe "
                f"of task {task.name} raises {type(error).__name__} there ({reason(error)}): let "
                "it take a state without answers, or play other baselines"
            ) from error


def _alone(config: RunConfig, task: Fixed) -> RunConfig:
    """One agent, who may write as much as all of them together, and is asked as each of them is.

    Raises ConfigError for agents of several models or temperatures.
    """
    if set(config.agents) == {ALONE}:  # settled by orchestry 0.1
        return config
    own = [config.agents.get(role, AgentConfig()).max_tokens for role in task.team]
    most = sum(tokens or config.sampling.max_tokens for tokens in own)
    agent = AgentConfig(
        model=_own(config, task.team, "model", config.provider.model),
        provider=_own(config, task.team, "provider", config.provider),
        max_tokens=most,
        temperature=_own(config, task.team, "temperature", config.sampling.temperature),
        system_prompt=task.agents[0].system_prompt,
    )
    return config.model_copy(update={"agents": {**config.agents, ALONE: agent}})


def _own(config: RunConfig, team: Sequence[str], key: str, usual: Any) -> Any:
    """What all agents have of a setting; None where that is the usual one."""
    own = [getattr(config.agents.get(role, AgentConfig()), key) for role in team]
    found = {usual if value is None else value for value in own}
    if len(found) > 1:
        named = ", ".join(sorted(map(_said, found)))
        raise ConfigError(
            f"baseline fixed is one model alone, and the agents have more than one {key} "
            f"({named}): play the other baselines, or leave agents.*.{key}"
        )
    return None if found == {usual} else found.pop()


def _said(one: Any) -> str:
    """A setting's value, for a message."""
    return "the default" if one is None else one.name if hasattr(one, "name") else str(one)
