"""Who judges a run: a provider, which may be the run's own, and what its calls cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestry.core.config import ProviderConfig, RunConfig
from orchestry.core.types import Provider
from orchestry.models.prices import PriceTable, price_table
from orchestry.models.providers import open_provider

NOISE = (
    "judge off: ratings of the embedded 135M model are noise (judge.enabled=true asks it anyway)"
)
ABLE = ("anthropic", "openai")
"""Providers whose models can judge."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The judge's provider and its prices."""

    provider: Provider
    prices: PriceTable
    own: bool
    """Whether it is another one than the run's, to be opened and closed beside it."""


def open_bench(
    config: RunConfig, provider: Provider, prices: PriceTable, environ: Mapping[str, str]
) -> Bench:
    """The judge's provider, checked; raises ConfigError as the run's own does."""
    if config.judge.provider is None:
        return Bench(provider, prices, own=False)
    asked = named(config.judge.provider, config.provider, provider)
    judge = open_provider(asked, config.seed, environ)
    alone = config.model_copy(update={"provider": asked, "agents": {}})
    return Bench(judge, price_table(judge, alone), own=True)


def able(critic: Provider) -> bool:
    """Whether this provider's model is asked to judge, and to distil, without being told to."""
    return critic.name in ABLE


def why_off(config: RunConfig, critic: Provider, judged: bool) -> str | None:
    """A line for the user who did not say whether to judge, and might have expected it.

    `judged` is whether the task asks for a judge.
    """
    if config.judge.enabled is not None:
        return None
    if critic.name == "embedded":
        return NOISE
    if able(critic) and not judged:
        return f"judge off: task {config.task} asks for none (judge.enabled=true asks it anyway)"
    return None


def named(asked: ProviderConfig, runs: ProviderConfig, provider: Provider) -> ProviderConfig:
    """The judge's provider by name: where it names none, the run's own, at the same address."""
    if asked.name != "auto":
        return asked
    changes = {"name": provider.name, "base_url": asked.base_url or runs.base_url}
    return asked.model_copy(update=changes)
