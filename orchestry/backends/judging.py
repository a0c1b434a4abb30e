"""Who judges a run, and whether: the provider, its prices, and why the judge is off where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestry.config import JudgeConfig, RunConfig
from orchestry.providers import open_provider, resolve_name
from orchestry.providers.openai import is_vendor
from orchestry.services.prices import PriceTable, price_table
from orchestry.types import Provider

NOISE = (
    "judge off: ratings of the embedded 135M model are noise (judge.enabled=true asks it anyway)"
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The judge's provider, which may be the run's own, and what its calls cost."""

    provider: Provider
    prices: PriceTable
    own: bool
    """Whether it is another one than the run's, to be opened and closed beside it."""


def open_bench(
    config: RunConfig, provider: Provider, prices: PriceTable, environ: Mapping[str, str]
) -> Bench:
    """The judge's provider, checked; raises ConfigError as the run's own does."""
    asked = config.judge.provider
    if asked is None:
        return Bench(provider, prices, own=False)
    judge = open_provider(asked, config.seed, environ)
    alone = config.model_copy(update={"provider": asked, "agents": {}})
    return Bench(judge, price_table(judge, alone), own=True)


def settled(config: RunConfig, bench: Bench, environ: Mapping[str, str]) -> RunConfig:
    """The config with its three open switches decided: judge, behaviours, share of replays."""
    judge = config.judge.model_copy(update=_judge(config.judge, bench, environ))
    learns = config.behaviors.enabled
    learns = bool(judge.enabled) if learns is None else learns
    share = config.credit.share
    share = (0.1 if learns else 0.0) if share is None else share
    return config.model_copy(
        update={
            "judge": judge,
            "behaviors": config.behaviors.model_copy(update={"enabled": learns}),
            "credit": config.credit.model_copy(update={"share": share}),
        }
    )


def _judge(judge: JudgeConfig, bench: Bench, environ: Mapping[str, str]) -> dict[str, Any]:
    """On by default for models that can judge: those behind an API."""
    changes: dict[str, Any] = {}
    if judge.temperature is None and _takes_temperature(bench.provider):
        changes["temperature"] = 0.0
    if judge.enabled is None:
        changes["enabled"] = bench.provider.name in ("anthropic", "openai")
    if judge.provider is not None:
        name, _ = resolve_name(judge.provider, environ)
        named = {"name": name, "model": bench.provider.model}
        changes["provider"] = judge.provider.model_copy(update=named)
    return changes


def _takes_temperature(provider: Provider) -> bool:
    """Claude and OpenAI's own newer models refuse one."""
    if provider.name == "openai":
        return not is_vendor(provider.base_url)
    return provider.name != "anthropic"
