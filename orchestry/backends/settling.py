"""A config with its open questions answered: who is asked, where, and from which files.

So a resume asks the same ones, from any folder. An address with a password stays in the
environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestry.backends.judging import able
from orchestry.core.config import PROVIDERS, CreditConfig, JudgeConfig, ProviderConfig, RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.types import Provider
from orchestry.models.openai import is_vendor

SHARE = 0.1
"""Calls for replays where behaviours are learned, as a share of an episode's."""


def settled(config: RunConfig, provider: Provider, critic: Provider, judged: bool) -> RunConfig:
    """The config as it is run with this provider, and this one for the judge.

    `judged` is whether the task asks for a judge; it decides only what the config leaves open.
    Raises ConfigError for a temperature that no one would read.
    """
    judge = settled_judge(config.judge, critic, judged)
    learns = _learns(config, critic)
    source = config.behaviors.source
    found = config.model_copy(
        update={
            "provider": settled_provider(config.provider, provider),
            "judge": judge,
            "credit": _credit(config.credit, learns),
            "behaviors": config.behaviors.model_copy(
                update={"enabled": learns, "source": source.absolute() if source else None}
            ),
            "cache": config.cache.model_copy(update=_absolute(dir=config.cache.dir)),
            "task_path": tuple(path.absolute() for path in config.task_path),
        }
    )
    _check_temperatures(found, provider, critic)
    return found


def settled_provider(asked: ProviderConfig, provider: Provider) -> ProviderConfig:
    """With name, model, address and paths as found."""
    name = provider.name if provider.name in PROVIDERS else asked.name  # weights have none
    changes: dict[str, Any] = {"name": name, "model": provider.model}
    if provider.name in ("anthropic", "openai") and not set("@?") & set(provider.base_url):
        changes["base_url"] = provider.base_url
    changes |= _absolute(recording=asked.recording)
    changes["fake"] = asked.fake.model_copy(update=_absolute(script=asked.fake.script))
    return asked.model_copy(update=changes)


def settled_judge(judge: JudgeConfig, critic: Provider, judged: bool) -> JudgeConfig:
    """On by default for models that can judge, where the task is `judged`; at temperature 0."""
    changes: dict[str, Any] = {}
    if judge.temperature is None and _takes_temperature(critic):
        changes["temperature"] = 0.0
    if judge.enabled is None:
        changes["enabled"] = able(critic) and judged
    if judge.when is None:
        changes["when"] = "undecided" if judged else "always"
    if judge.provider is not None:
        changes["provider"] = settled_provider(judge.provider, critic)
    return judge.model_copy(update=changes)


def _learns(config: RunConfig, critic: Provider) -> bool:
    """By default as the user says of the judge, whose model distils; not as the task does, whose
    score is what behaviours are tested by.
    """
    if config.behaviors.enabled is not None:
        return config.behaviors.enabled
    return able(critic) if config.judge.enabled is None else config.judge.enabled


def _credit(credit: CreditConfig, learns: bool) -> CreditConfig:
    """Where nothing is learned from them, credits are made of the samples at hand."""
    if credit.share is not None:
        return credit
    if learns:
        return credit.model_copy(update={"share": SHARE})
    method = "siblings" if credit.method == "replay" else credit.method
    return credit.model_copy(update={"share": 0.0, "method": method})


def _absolute(**paths: Path | None) -> dict[str, Path]:
    return {name: path.absolute() for name, path in paths.items() if path}


def _takes_temperature(provider: Provider) -> bool:
    """Claude and OpenAI's own newer models refuse one."""
    if provider.name == "openai":
        return not is_vendor(provider.base_url)
    return provider.name != "anthropic"


def _check_temperatures(config: RunConfig, provider: Provider, critic: Provider) -> None:
    set_ones = [config.sampling.temperature, *(own.temperature for own in config.agents.values())]
    asked = provider.name == "anthropic" and any(t is not None for t in set_ones)
    if asked or (critic.name == "anthropic" and config.judge.temperature is not None):
        raise ConfigError(
            "Claude takes no temperature, and one is set in sampling, agents or judge: remove it; "
            "its samples differ by an angle at the end of the prompt"
        )
