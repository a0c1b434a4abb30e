"""Whether vendors take the keys that are set: one token of each, under a cap of a cent."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestry.core.config import ProviderConfig, RunConfig
from orchestry.core.errors import BudgetExceeded, ConfigError, OrchestryError, ProviderError
from orchestry.core.types import Completion, Message, Provider, Request
from orchestry.engine.run import in_own_loop
from orchestry.models.ledger import Ledger
from orchestry.models.names import by_names, critics_by_names, named
from orchestry.models.openai import VENDOR_URL, is_vendor
from orchestry.models.prices import PriceTable, price_table
from orchestry.models.providers import open_provider
from orchestry.models.request_key import request_key
from orchestry.store.journal import Answered, Journal

CAP_USD = 0.01
"""Of one call; its worst case is reserved."""
TIMEOUT_S = 20.0
VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
_CHEAP = "gpt-4.1-nano"
"""Asked at OpenAI's own address where no model is named."""
_SHORT = "output limit was reached"
"""In the 400 of OpenAI's thinking models, which one token does not reach: the key was taken."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a vendor said to a key."""

    variable: str
    """The key's; of a judge and the like also the config's key."""
    verdict: Literal["ok", "refused", "unreachable", "not tried"]
    said: str
    """Model and dollars; or what went wrong, and the fix. It has no key in it."""


def as_played(config: RunConfig, environ: Mapping[str, str]) -> RunConfig:
    """The config with the providers that a run of it would ask today. Raises ConfigError if the
    environment leaves them open."""
    if config.backend == "api":
        return by_names(config, environ, [*config.agents])[0]
    return critics_by_names(config, environ)


def providers_of(config: RunConfig) -> Iterator[tuple[str, ProviderConfig]]:
    """By the key that names them: the settings by which a run opens the providers of a config, of
    which `as_played` has filled in the names."""
    if config.backend == "api":
        yield "provider", config.provider
    asked = {"judge.provider": config.judge.provider}
    asked["behaviors.provider"] = config.behaviors.provider
    for role, own in config.agents.items():
        model = own.model or (own.provider and own.provider.model)
        asked[f"agents.{role}.provider"] = own.provider and own.provider.model_copy(
            update={"model": model}
        )
    for key, one in asked.items():
        if one is not None:
            yield key, named(one, config.provider, config.provider.name)


def try_keys(config: RunConfig, environ: Mapping[str, str]) -> Iterator[Tried]:
    """Tries each provider of the config whose key is set, or that needs none, and each other vendor
    whose key is set: with the model, address, prices and settings that a run would use. Nothing is
    kept."""
    try:
        config = as_played(config, environ)
        asked = [*providers_of(config)]
    except ConfigError:  # the run itself says why
        asked = []
    for label, one in _labelled(asked, environ).items():
        yield in_own_loop(_tried(label, one, config, environ))


def _labelled(
    named: Sequence[tuple[str, ProviderConfig]], environ: Mapping[str, str]
) -> dict[str, ProviderConfig]:
    """Those to be tried, by what names them in the answer: the key's variable and, of a judge and
    the like, the key of the config."""
    keys = {name: environ.get(variable, "").strip() for name, variable in VARIABLES.items()}
    found = dict[str, ProviderConfig]()
    for key, asked in named:
        if asked.name not in VARIABLES:
            continue
        asked = _cheap(asked, environ)
        if asked not in found.values() and (keys[asked.name] or _needs_none(asked, environ)):
            label = VARIABLES[asked.name] + ("" if key == "provider" else f" of {key}")
            found[label] = asked
    for name in keys:
        if keys[name] and all(asked.name != name for asked in found.values()):
            found[VARIABLES[name]] = _cheap(ProviderConfig(name=name), environ)
    return found


def _cheap(asked: ProviderConfig, environ: Mapping[str, str]) -> ProviderConfig:
    model = asked.model
    if asked.name == "openai" and not _needs_none(asked, environ):
        model = model or environ.get("OPENAI_MODEL") or _CHEAP
    changes = {"model": model, "timeout_s": min(TIMEOUT_S, asked.timeout_s)}
    return asked.model_copy(update=changes)


def _needs_none(asked: ProviderConfig, environ: Mapping[str, str]) -> bool:
    """Whether no key is needed: at another server than OpenAI's own."""
    url = asked.base_url or environ.get("OPENAI_BASE_URL") or VENDOR_URL
    return asked.name == "openai" and not is_vendor(url)


async def _tried(
    variable: str, asked: ProviderConfig, config: RunConfig, environ: Mapping[str, str]
) -> Tried:
    try:
        provider = open_provider(asked, 0, environ)
        prices = price_table(provider, config.model_copy(update={"provider": asked, "agents": {}}))
        async with provider:
            answer = await _one_token(provider, prices)
    except ProviderError as error:
        if _SHORT in str(error):
            return Tried(variable, "ok", f"{provider.model} takes it")
        return Tried(variable, "unreachable" if error.transient else "refused", str(error))
    except OrchestryError as error:
        return Tried(variable, "not tried", str(error))
    return Tried(variable, "ok", f"{provider.model} answered, for ${answer.usd:.6f}")


async def _one_token(provider: Provider, prices: PriceTable) -> Completion:
    """One attempt, reserved and settled like any paid call. Raises ProviderError, and ConfigError
    for a model whose token may pass the cap."""
    request = Request(
        agent="doctor",
        model=provider.model,
        messages=(Message(role="user", content="Hi"),),
        max_tokens=1,
    )
    worst = prices.worst(provider.model, provider.input_bound(request), 1, shared=False)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder, "journal.jsonl"))
        try:
            ledger = Ledger(CAP_USD, journal, 1.0, on_warn=lambda text: None)
            return await _paid(ledger, worst, provider, prices, request)
        finally:
            journal.close()


async def _paid(
    ledger: Ledger, worst: float, provider: Provider, prices: PriceTable, request: Request
) -> Completion:
    key, began = request_key(provider, request), time.time()
    try:
        call = await ledger.reserve(key, worst)
    except BudgetExceeded:
        raise ConfigError(
            f"a call of {request.model} could cost ${worst:.3f}, and a try may cost ${CAP_USD}: "
            "name a cheaper model"
        ) from None
    try:
        raw = await provider.complete(request)
    except ProviderError as error:
        (ledger.lose if error.billed else ledger.release)(call, str(error))
        raise
    answer = raw.model_copy(update={"usd": prices.cost(raw, request.model)})
    ledger.settle(
        Answered(
            call=call,
            key=key,
            agent=request.agent,
            purpose=request.purpose,
            source="provider",
            completion=answer,
            at=time.time(),
            seconds=time.time() - began,
        )
    )
    return answer
