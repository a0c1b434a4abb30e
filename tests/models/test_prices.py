"""Prices agree with genai-prices call by call, and the worst case bounds every smaller use."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import yaml
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from hypothesis import example, given
from hypothesis import strategies as st

from orchestry.core.config import PriceConfig, resolve, validate
from orchestry.core.errors import ConfigError
from orchestry.core.types import Completion
from orchestry.models.prices import PriceTable

VENDORS = ("anthropic", "openai")
TABLES = {name: PriceTable(name, {}) for name in VENDORS}


def _models() -> Iterator[tuple[str, str]]:
    """Every model of both vendors whose text has a price."""
    for vendor in VENDORS:
        provider = next(p for p in get_snapshot().providers if p.id == vendor)
        for model in provider.models:
            try:
                TABLES[vendor].check([model.id])
            except ConfigError:
                continue
            yield vendor, model.id


MODELS = tuple(_models())
USES = st.tuples(
    st.integers(0, 1_200_000),
    st.integers(0, 2_000_000),
    st.floats(0, 1),
    st.floats(0, 1),
)


def _answer(model: str, use: tuple[int, int, float, float]) -> Completion:
    total, output, cached, written = use
    read = int(total * cached)
    return Completion(
        text="",
        model=model,
        input_tokens=total,
        output_tokens=output,
        cached_tokens=read,
        cache_write_tokens=int((total - read) * written),
    )


def test_both_vendors_have_many_priced_models() -> None:
    assert len(MODELS) > 80


@given(st.sampled_from(MODELS), USES)
def test_cost_is_the_librarys_own(
    entry: tuple[str, str], use: tuple[int, int, float, float]
) -> None:
    vendor, model = entry
    answer = _answer(model, use)
    exact = calc_price(
        Usage(
            input_tokens=answer.input_tokens,
            cache_read_tokens=answer.cached_tokens,
            cache_write_tokens=answer.cache_write_tokens,
            output_tokens=answer.output_tokens,
        ),
        model,
        provider_id=vendor,
        genai_request_timestamp=datetime.now(UTC),
    )
    assert TABLES[vendor].cost(answer) == pytest.approx(float(exact.total_price), rel=1e-12)


@given(st.sampled_from(MODELS), USES, st.integers(0, 400_000), st.integers(0, 1000))
def test_worst_bounds_every_smaller_use(
    entry: tuple[str, str], use: tuple[int, int, float, float], more_in: int, more_out: int
) -> None:
    vendor, model = entry
    answer = _answer(model, use)
    worst = TABLES[vendor].worst(
        model, answer.input_tokens + more_in, answer.output_tokens + more_out, shared=True
    )
    assert TABLES[vendor].cost(answer) <= worst * (1 + 1e-12)


def test_a_tier_holds_for_the_whole_request() -> None:
    table = TABLES["anthropic"]
    below = table.cost(_answer("claude-sonnet-4-5", (200_000, 0, 0, 0)))
    above = table.cost(_answer("claude-sonnet-4-5", (200_001, 0, 0, 0)))
    assert above > 1.9 * below


def test_only_a_marked_prompt_is_written_to_anthropics_cache() -> None:
    table = TABLES["anthropic"]
    plain = table.worst("claude-opus-4-5", 1_000_000, 0, shared=False)
    assert (plain, table.worst("claude-opus-4-5", 1_000_000, 0, shared=True)) == (5.0, 6.25)


@pytest.mark.parametrize("free", [True, False])
def test_an_override_wins(free: bool) -> None:
    price = PriceConfig(input=1.0, output=2.0, cached_input=0.5, cache_write=3.0)
    table = PriceTable("fake", {"m": price}, free=free)
    answer = Completion(
        text="",
        model="served-as-something-else",
        input_tokens=1_000_000,
        cached_tokens=500_000,
        cache_write_tokens=250_000,
        output_tokens=1_000_000,
    )
    assert table.cost(answer, "m") == pytest.approx(0.25 + 0.25 + 0.75 + 2.0)
    assert table.worst("m", 1_000_000, 1_000_000, shared=False) == pytest.approx(5.0)


def test_a_free_provider_costs_nothing() -> None:
    table = PriceTable("embedded", {}, free=True)
    table.check(["any"])
    assert table.worst("any", 10**6, 10**6, shared=True) == 0.0
    assert table.cost(Completion(text="", model="any", input_tokens=10**6)) == 0.0


def test_an_openai_compatible_server_is_priced_by_its_model() -> None:
    TABLES["openai"].check(["mistral-large-latest"])


def test_the_address_decides_between_vendors_of_one_model() -> None:
    answer = Completion(text="", model="openai/gpt-oss-120b", input_tokens=1_000_000)
    prices = {
        url: PriceTable("openai", {}, base_url=url).cost(answer)
        for url in ("https://api.groq.com/openai/v1", "https://openrouter.ai/api/v1")
    }
    assert len(set(prices.values())) == 2


@pytest.mark.parametrize(
    ("vendor", "model", "near"),
    [("anthropic", "claude-haku-4-5", "claude-haiku-4-5"), ("openai", "gpt-4o-mni", "gpt-4o-mini")],
)
def test_an_unknown_model_names_itself_the_nearest_and_the_fix(
    vendor: str, model: str, near: str
) -> None:
    with pytest.raises(ConfigError, match=rf"'{model}'.*{near}.*--set prices\.{model}\.input="):
        PriceTable(vendor, {}).check([model])


_NAMES = st.lists(
    st.sampled_from(
        [*"/:.,@[]{}'\"=#*&!|>%`~$\\? -_", "zz", "4", "true", "null", "é", "\U0001f600"]
    ),
    min_size=1,
    max_size=8,
).map("".join)
_NAMES = _NAMES.filter(lambda name: "..." not in name)  # which stands for the figures


@given(_NAMES.map("zz-".__add__) | _NAMES)
@example("my-model")
@example("qwen3-0.6b")
@example("hf.co/zz/Zz-4B-GGUF:Q4_K_M")
def test_the_named_fix_works(model: str) -> None:
    try:
        PriceTable("openai", {}).check([model])
        return  # a known one
    except ConfigError as error:
        command = str(error).partition(" with `")[2].removesuffix("`")
    words = shlex.split(command.replace("...", "1.5"))
    config = resolve(sets=[word for word in words if word != "--set"])
    assert [*config.prices] == [model]
    assert validate(yaml.safe_load(config.to_yaml())).prices == config.prices
    PriceTable("openai", config.prices).check([model])


@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "cached_tokens"])
def test_a_negative_count_never_earns_money(field: str) -> None:
    answer = Completion(text="", model="claude-opus-4-5").model_copy(update={field: -5})
    assert TABLES["anthropic"].cost(answer) == 0.0


def test_an_answer_under_an_unknown_name_costs_what_was_asked_for() -> None:
    answer = Completion(text="", model="internal-alias", input_tokens=1_000_000)
    assert TABLES["anthropic"].cost(answer, "claude-opus-4-5") == pytest.approx(5.0)


def test_version_is_the_installed_one() -> None:
    assert re.fullmatch(r"\d+\.\d+.*", PriceTable("anthropic", {}).version)
