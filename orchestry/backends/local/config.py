"""A config as backend local runs it: what it would not read is refused, what it decides is written
down.
"""

from __future__ import annotations

from orchestry.backends.local.base import EMBEDDED, source_of
from orchestry.backends.local.device import device_of
from orchestry.core.config import AgentConfig, RunConfig, SearchConfig
from orchestry.core.cores import idle_cores
from orchestry.core.errors import ConfigError

ON_GPU = "Qwen/Qwen2.5-Coder-1.5B-Instruct"
TEMPERATURE = 0.8
"""Where the config names none: the paper's."""
_FIXED = {"strategy": "chains", "beam_width": SearchConfig().beam_width}
"""What a config may say of the search, since it would be no other."""


def refuse(config: RunConfig) -> None:
    """Raises ConfigError for settings that other backends have and this one would not read."""
    judge = config.judge.provider
    reasons = {
        f"it has no provider {config.provider.name}: leave provider.name, and name the base in "
        "provider.model": config.provider.name not in ("auto", EMBEDDED),
        "it learns by gradients: behaviors.enabled=true is for backend api": bool(
            config.behaviors.enabled
        ),
        "its weights can't judge: name another provider in judge.provider.name": judge is not None
        and judge.name == "auto",
        "its replays are learn.credit=replay: leave credit.share": bool(config.credit.share),
        "learn.credit=replay is of aligned joint actions: leave search.joint": (
            config.learn.credit == "replay" and config.search.joint != "aligned"
        ),
    }
    reasons |= {
        f"it draws independent chains, learn.group_size of each problem: leave search.{name}": (
            name in config.search.model_fields_set and getattr(config.search, name) != fits
        )
        for name, fits in {**_FIXED, "k_samples": config.learn.group_size}.items()
    }
    for why, applies in reasons.items():
        if applies:
            raise ConfigError(f"backend local refuses this config: {why}")


def as_chains(config: RunConfig) -> RunConfig:
    """Independent trajectories, a group a problem, all episodes of an update at once; all that a
    resume must find again is settled."""
    learn, sampling = config.learn, config.sampling
    search = {
        "strategy": "chains",
        "k_samples": learn.group_size,
        "episodes_in_flight": learn.every,
    }
    temperature = TEMPERATURE if sampling.temperature is None else sampling.temperature
    own = {
        "threads": learn.threads or idle_cores(),
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


def _with_source(agent: AgentConfig) -> AgentConfig:
    return agent.model_copy(update={"model": agent.model and source_of(agent.model)})


def model_of(config: RunConfig) -> str:
    """The base that the config names; else one that can code where there is a GPU to train it, and
    the embedded one elsewhere. Raises ConfigError for a folder that is not there.
    """
    if config.provider.model is not None:
        return source_of(config.provider.model)
    if config.provider.name == EMBEDDED:
        return EMBEDDED
    return ON_GPU if device_of(config.learn.device).type == "cuda" else EMBEDDED
