"""The config that backend local runs with: what it refuses, and what it settles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from orchestry.backends.local.model import device_of, source_of
from orchestry.core.config import AgentConfig, ProviderConfig, RunConfig, SearchConfig
from orchestry.core.errors import ConfigError
from orchestry.core.machine import cores
from orchestry.core.types import Problem
from orchestry.models.gguf import EMBEDDED
from orchestry.rollout.schedule import Branching, branching
from orchestry.task.base import BaseTask

ON_GPU = "Qwen/Qwen2.5-Coder-1.5B-Instruct"
TEMPERATURE = 0.8
"""The paper's temperature, if the config names none."""
_FIXED = {"strategy": "chains", "beam_width": SearchConfig().beam_width}
"""Search settings that a config may repeat, because they are fixed here."""


def refuse(config: RunConfig) -> None:
    """Raises ConfigError for settings that this backend would ignore."""
    judge = config.judge.provider
    reasons = {
        f"its own weights answer for every agent that learns: leave out agents.{role}.provider and "
        f"name a base of the agent's own in agents.{role}.model, or set agents.{role}.frozen=true, "
        "and the others learn beside it": True
        for role, own in config.agents.items()
        if own.provider is not None and own.provider.name not in ("auto", EMBEDDED)
        if not own.frozen
    }
    reasons["learn.shared=true trains one adapter for all agents: leave out agents.ROLE.frozen"] = (
        config.learn.shared and any(own.frozen for own in config.agents.values())
    )
    reasons |= {
        f"it has no provider {config.provider.name}: leave out provider.name, and name the base in "
        "provider.model": config.provider.name not in ("auto", EMBEDDED),
        "it learns by gradients: behaviors.enabled=true is for backend api": bool(
            config.behaviors.enabled
        ),
        "it draws the episodes of an update together: leave out pace": bool(config.pace),
        "its weights can't judge: name another provider in judge.provider.name": judge is not None
        and judge.name == "auto",
        "its replays are learn.credit=replay: leave out credit.share": bool(config.credit.share),
        "learn.credit=replay needs aligned joint actions: leave out search.joint": (
            config.learn.credit == "replay" and config.search.joint != "aligned"
        ),
        "learn.group_size=auto needs aligned joint actions: leave out search.joint": (
            config.learn.group_size is None and config.search.joint != "aligned"
        ),
    }
    reasons |= {
        f"search.branch=tree takes {fits}": config.search.branch == "tree" and not holds
        for fits, holds in _for_trees(config).items()
    }
    reasons |= {
        f"it draws independent chains, learn.group_size of each problem: leave out search.{name}": (
            name in config.search.model_fields_set and getattr(config.search, name) != fits
        )
        for name, fits in {**_FIXED, "k_samples": config.learn.samples}.items()
    }
    for why, applies in reasons.items():
        if applies:
            raise ConfigError(f"backend local refuses this config: {why}")


def _for_trees(config: RunConfig) -> dict[str, bool]:
    """What a tree needs, and whether the config has it."""
    learn = config.learn
    return {
        "learn.group_size as a number": learn.group_size is not None,
        "learn.credit=joint: every state has siblings to compare with": learn.credit == "joint",
        "learn.grouping=history or turn": learn.grouping != "agent",
        "learn.kl=0": not learn.kl,
        "learn.comlrl_compat=false": not learn.comlrl_compat,
        "aligned joint actions: leave out search.joint": config.search.joint == "aligned",
    }


def trees(
    task: BaseTask[Any], problems: Iterable[Problem], k: int, most: int
) -> Iterator[Branching]:
    """Each problem's tree. Raises ConfigError if one has more than `most` states."""
    for problem in problems:
        tree = branching(task, problem, k)
        if tree.nodes > most:
            raise ConfigError(
                f"search.branch=tree would reach {tree.nodes} states of problem {problem.id} "
                f"(learn.group_size={k} samples in every state, {tree.stages} stages), and "
                f"search.max_nodes={most}: lower learn.group_size, raise search.max_nodes, or "
                "leave out search.branch"
            )
        yield tree


def as_chains(config: RunConfig) -> RunConfig:
    """Independent trajectories, one group per problem, all episodes of an update at once;
    everything that a resume needs is resolved."""
    learn, sampling = config.learn, config.sampling
    search = {
        "strategy": "chains",
        "k_samples": learn.samples,
        "episodes_in_flight": learn.every,
    }
    temperature = TEMPERATURE if sampling.temperature is None else sampling.temperature
    own = {
        "threads": learn.threads or cores(),
        "source": learn.source.expanduser().absolute() if learn.source else None,
    }
    return config.model_copy(
        update={
            "search": config.search.model_copy(update=search),
            "sampling": sampling.model_copy(update={"temperature": temperature}),
            "learn": learn.model_copy(update=own),
            "judge": config.judge.model_copy(update={"when": config.judge.when or "always"}),
            "agents": {role: _with_source(agent) for role, agent in config.agents.items()},
            "behaviors": config.behaviors.model_copy(update={"enabled": False}),
        }
    )


def served(agent: AgentConfig) -> bool:
    """Whether another provider answers for the agent, which is frozen then."""
    return agent.frozen and agent.provider is not None and agent.provider.name != "auto"


def _with_source(agent: AgentConfig) -> AgentConfig:
    """With the base resolved; `provider: embedded` names the embedded one."""
    if served(agent):
        return agent
    asked = agent.provider or ProviderConfig()
    base = agent.model or asked.model or (EMBEDDED if asked.name == EMBEDDED else None)
    return agent.model_copy(update={"model": base and source_of(base), "provider": None})


def on_a_gpu(config: RunConfig) -> RunConfig:
    """The config with the base that a machine with a GPU would take."""
    if config.provider.model is not None or config.provider.name == EMBEDDED:
        return config
    provider = config.provider.model_copy(update={"model": ON_GPU})
    return config.model_copy(update={"provider": provider})


def model_of(config: RunConfig) -> str:
    """The config's base; by default one that can code if there is a GPU, else the embedded one.
    Raises ConfigError for a folder that does not exist.
    """
    if config.provider.model is not None:
        return source_of(config.provider.model)
    if config.provider.name == EMBEDDED:
        return EMBEDDED
    return ON_GPU if device_of(config.learn.device).type == "cuda" else EMBEDDED
