"""Prices: the cost of a call and its worst case, in US dollars.

genai-prices has the vendors' prices, but takes 0.1 ms per call. So each model's rates are computed
once, with the library's own calculation, and a call then needs four products.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

import yaml

from orchestry.core.config import PriceConfig, RunConfig
from orchestry.core.errors import ConfigError, unknown
from orchestry.core.types import Completion, Provider

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice
    from genai_prices.types import Provider as Vendor

MTOK = 1_000_000
FREE = ("embedded", "recorded", "fake", "local")
"""Providers that cost nothing, unless the config gives a price."""
HORIZON = timedelta(hours=1)
"""A call ends within this time; a price change until then may apply to it."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """Dollars per request and per token, up to `last` input tokens (None: no limit)."""

    last: int | None
    request: float
    input: float
    cached: float
    written: float
    output: float


class PriceTable:
    """The prices of one provider's models.

    `overrides` win over genai-prices; `free` prices every other model at zero. `base_url`
    distinguishes vendors that have the same API but different prices.
    """

    def __init__(
        self,
        provider: str,
        overrides: Mapping[str, PriceConfig],
        free: bool = False,
        base_url: str = "",
    ) -> None:
        self._provider = provider
        self._base_url = base_url
        self._free = free
        self._fixed = {model: (_fixed(price),) for model, price in overrides.items()}
        self._bands: dict[int, tuple[_Rates, ...]] = {}
        self._found: dict[str, tuple[Vendor, ModelInfo] | None] = {}

    @cached_property
    def version(self) -> str:
        """The version of genai-prices, the source of the prices."""
        from importlib.metadata import version

        return version("genai-prices")

    def check(self, models: Iterable[str]) -> None:
        """Raises ConfigError naming the first model without a price, and the fix."""
        for model in models:
            if self._known_bands(model, datetime.now(UTC)) is None:
                raise self._unpriced(model)

    def cost(self, completion: Completion, asked: str | None = None) -> float:
        """Dollars for one answered call.

        `asked` is the request's model. Its price is used if the config overrides it, or if the
        server answers under a name without a price.
        """
        now = datetime.now(UTC)
        names = [asked] if asked in self._fixed else [completion.model, asked]
        bands = next((b for name in names if name and (b := self._known_bands(name, now))), None)
        if bands is None:
            raise self._unpriced(completion.model)
        total = max(0, completion.input_tokens)
        cached = min(max(0, completion.cached_tokens), total)
        written = min(max(0, completion.cache_write_tokens), total - cached)
        rates = _band(bands, total)
        return (
            rates.request
            + rates.input * (total - cached - written)
            + rates.cached * cached
            + rates.written * written
            + rates.output * max(0, completion.output_tokens)
        )

    def worst(self, model: str, input_bound: int, max_tokens: int, shared: bool) -> float:
        """The most dollars that a call with at most these token counts can cost.

        Raises ConfigError for a model without a price.
        """
        found = self.worst_known(model, input_bound, max_tokens, shared)
        if found is None:
            raise self._unpriced(model)
        return found

    def worst_known(
        self, model: str, input_bound: int, max_tokens: int, shared: bool
    ) -> float | None:
        """The same; None for a model without a price.

        A tier's rate holds for the whole request and may rise or fall, so the top of every tier up
        to `input_bound` is priced; within a tier the top is dearest. Anthropic writes its prompt
        cache only on request (`shared`); other vendors may always write.
        """
        now = datetime.now(UTC)
        bands = [self._known_bands(model, when) for when in (now, now + HORIZON)]
        writes = shared or self._provider != "anthropic"
        tops = [_top(known, input_bound, max_tokens, writes) for known in bands if known]
        return max(tops) if len(tops) == len(bands) else None

    def _known_bands(self, model: str, when: datetime) -> tuple[_Rates, ...] | None:
        """The rates of a model by size of the input, smallest first; None where unknown."""
        if model in self._fixed:
            return self._fixed[model]
        if self._free:
            return (_Rates(None, 0.0, 0.0, 0.0, 0.0, 0.0),)
        if model not in self._found:
            self._found[model] = self._find(model)
        found = self._found[model]
        if found is None:
            return None
        price = found[1].get_prices(when)
        if id(price) not in self._bands:  # price sets live as long as the library
            self._bands[id(price)] = tuple(_measure(*found, price, when))
        return self._bands[id(price)]

    def _find(self, model: str) -> tuple[Vendor, ModelInfo] | None:
        """The library's entry for the vendor at this address, else for the provider, else for
        any."""
        from genai_prices.data_snapshot import get_snapshot

        for provider, url in ((None, self._base_url), (self._provider, None), (None, None)):
            try:
                found = get_snapshot().find_provider_model(model, None, provider, url or None)
            except LookupError:
                continue
            if _prices_text(found[1]):
                return found
        return None

    def _unpriced(self, model: str) -> ConfigError:
        from genai_prices.data_snapshot import get_snapshot

        known = [
            entry.id
            for provider in get_snapshot().providers
            if provider.id == self._provider
            for entry in provider.models
            if _prices_text(entry)
        ]
        near, _, _ = unknown("price for model", model, known + sorted(self._fixed)).partition(
            " Known:"
        )
        return ConfigError(f"{near} Give its dollars per million tokens with {_fix(model)}")


def _fix(model: str) -> str:
    """The setting that prices a model, for a shell: a name that a dotted key, YAML or a shell might
    read in another way is quoted for all three."""
    if not re.fullmatch(r"[A-Za-z][\w-]*", model, re.ASCII):
        name = yaml.safe_dump(model, default_style='"', width=float("inf")).strip()
        return f"`--set {shlex.quote(f'prices={{{name}: {{input: ..., output: ...}}}}')}`"
    return f"`--set prices.{model}.input=... --set prices.{model}.output=...`"


def price_table(provider: Provider, config: RunConfig) -> PriceTable:
    """The prices of a run's own provider, checked; raises ConfigError for a model without one."""
    table = PriceTable(provider.name, config.prices, provider.name in FREE, provider.base_url)
    agents = (agent.model for agent in config.agents.values() if agent.provider is None)
    table.check(model for model in (provider.model, config.provider.model, *agents) if model)
    return table


def _fixed(price: PriceConfig) -> _Rates:
    cached = price.input if price.cached_input is None else price.cached_input
    written = price.input if price.cache_write is None else price.cache_write
    return _Rates(None, 0.0, price.input / MTOK, cached / MTOK, written / MTOK, price.output / MTOK)


def undercuts(provider: str, base_url: str, model: str, price: PriceConfig) -> bool:
    """Whether a price is below the one that genai-prices knows, or is none at all where it knows
    none."""
    tables = PriceTable(provider, {model: price}), PriceTable(provider, {}, False, base_url)
    said, known = (table.worst_known(model, MTOK, MTOK, shared=False) for table in tables)
    return not said if known is None else (said or 0.0) < known


def _band(bands: tuple[_Rates, ...], input_tokens: int) -> _Rates:
    return next(b for b in bands if b.last is None or input_tokens <= b.last)


def _top(bands: tuple[_Rates, ...], input_bound: int, max_tokens: int, writes: bool) -> float:
    worst = 0.0
    for rates in bands:
        size = input_bound if rates.last is None else min(input_bound, rates.last)
        dearest = max(rates.input, rates.cached, rates.written if writes else 0.0)
        worst = max(worst, rates.request + dearest * size + rates.output * max_tokens)
        if rates.last is not None and input_bound <= rates.last:
            break
    return worst


def _prices_text(model: ModelInfo) -> bool:
    """Whether tokens of text have a price: some entries price only audio or images."""
    if not isinstance(model.prices, list):
        return model.prices.input_mtok is not None
    return all(item.prices.input_mtok is not None for item in model.prices)


def _measure(
    provider: Vendor, model: ModelInfo, price: ModelPrice, when: datetime
) -> Iterable[_Rates]:
    """A price set's rates, computed by the library tier by tier, so that its rules apply."""
    from genai_prices import Usage

    def dollars(**usage: int) -> Decimal:
        found = model.calc_price(Usage(**usage), provider, genai_request_timestamp=when)
        return found.total_price

    starts = {tier.start for value in vars(price).values() for tier in getattr(value, "tiers", ())}
    fee = dollars(input_tokens=0)
    first = 0
    for last in [*sorted(starts), None]:
        size = first + 1
        plain = dollars(input_tokens=size)
        yield _Rates(
            last,
            float(fee),
            float((plain - fee) / size),
            float((dollars(input_tokens=size, cache_read_tokens=size) - fee) / size),
            float((dollars(input_tokens=size, cache_write_tokens=size) - fee) / size),
            float((dollars(input_tokens=size, output_tokens=MTOK) - plain) / MTOK),
        )
        first = last or 0
