"""Settings of a run whose task is played by a program: it can't be branched, nor played on from the
middle, so rollouts are independent chains."""

from __future__ import annotations

from typing import Any

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.task.base import BaseTask
from orchestry.task.programs.agent_task import AgentTask

CHAINS = (
    "a program can't be branched: each episode plays search.k_samples={} rollouts of their own "
    "(search.strategy=chains), from whose middles nothing is replayed (credit.method=siblings)"
)


def for_program(config: RunConfig, task: BaseTask[Any]) -> tuple[RunConfig, list[str]]:
    """The config with chains in place of a search, and a note that says so; unchanged for other
    tasks. Raises ConfigError for settings that need a branch."""
    if not isinstance(task, AgentTask):
        return config, []
    if config.search.branch == "tree" or config.learn.credit == "replay":
        what = "search.branch=tree" if config.search.branch == "tree" else "learn.credit=replay"
        raise ConfigError(
            f"{what} plays on from the middle of a rollout, and task {task.name} is played by a "
            "program, which only starts from its beginning: leave it out"
        )
    if config.learn.baseline == "critic":
        raise ConfigError(
            "learn.baseline=critic estimates a state before anybody has spoken, which the program "
            f"of task {task.name} does not show: leave it out"
        )
    search, credit = config.search, config.credit
    if search.strategy != "single":
        search = search.model_copy(update={"strategy": "chains"})
    if credit.method == "replay":
        credit = credit.model_copy(update={"method": "siblings", "share": 0.0})
    # a trial within an episode compares the last moves of siblings, and chains have none
    behaviors = config.behaviors.model_copy(update={"in_search": False})
    changes = {"search": search, "credit": credit, "behaviors": behaviors}
    told = (search, credit) != (config.search, config.credit) and config.backend == "api"
    notes = [CHAINS.format(search.k_samples)] if told else []
    return config.model_copy(update=changes), notes
