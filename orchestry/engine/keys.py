"""Whether vendors take the keys that are set: one token of each, under a cap of a cent."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestry.core.config import ProviderConfig, RunConfig
from orchestry.core.errors import BudgetExceeded, ConfigError, OrchestryError, ProviderError
from orchestry.core.types import Completion, Message, Provider, Request
from orchestry.engine.run import in_own_loop
from orchestry.models.ledger import Ledger
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
    verdict: Literal["ok", "refused", "unreachable", "not tried"]
    said: str
    """Model and dollars; or what went wrong, and the fix. It has no key in it."""


def try_keys(config: RunConfig, environ: Mapping[str, str]) -> Iterator[Tried]:
    """Tries each vendor's key that is set, with the model and address that a run of the config
    would use, and its prices. Nothing is kept."""
    for vendor, variable in VARIABLES.items():
        if environ.get(variable, "").strip():
            yield in_own_loop(_tried(_asked(config, vendor, environ), config, environ))


def _asked(config: RunConfig, vendor: str, environ: Mapping[str, str]) -> ProviderConfig:
    own = config.provider if config.provider.name == vendor else ProviderConfig(name="auto")
    model, url = own.model, own.base_url or environ.get("OPENAI_BASE_URL") or VENDOR_URL
    if vendor == "openai" and is_vendor(url):
        model = model or environ.get("OPENAI_MODEL") or _CHEAP
    changes = {"name": vendor, "model": model, "timeout_s": min(TIMEOUT_S, own.timeout_s)}
    return own.model_copy(update=changes)


async def _tried(asked: ProviderConfig, config: RunConfig, environ: Mapping[str, str]) -> Tried:
    variable = VARIABLES[asked.name]
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
