"""The prompt-cache benchmark: real prices, exact prompts, and a small run of each schedule."""

from __future__ import annotations

import json

import pytest

from benchmarks.guarantees.prompt_cache import (
    GOAL,
    SETTINGS,
    Played,
    Row,
    Setting,
    _agree,
    measure,
    options,
    prompt,
    report,
)
from benchmarks.server.bill import Bill, Options, Usage
from benchmarks.server.bill import measure as tokens_of

SONNET = Setting("claude-sonnet-5", 1024)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_prompts_have_the_size_they_say_and_differ_by_state(setting: Setting) -> None:
    first, other = prompt(setting, 0), prompt(setting, 1)
    body = {"messages": [json.loads(m.model_dump_json()) for m in first.messages]}
    assert tokens_of(body, 4, marked=False).tokens == setting.context
    assert first.messages[0] == other.messages[0]
    assert first.messages[1] != other.messages[1]


def test_the_server_charges_what_genai_prices_says() -> None:
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    server = Bill(options(SONNET, 0.0))
    server.charge("x", Usage(input=500, output=300, write=1000, read=1500))
    tokens = Tokens(
        input_tokens=3000, cache_write_tokens=1000, cache_read_tokens=1500, output_tokens=300
    )
    price = calc_price(tokens, SONNET.model, provider_id="anthropic")
    assert server.usd == pytest.approx(float(price.total_price), rel=1e-9)


@pytest.mark.slow
async def test_a_leader_saves_what_cold_samples_lose() -> None:
    row = await measure(SONNET, states=3, latency_s=0.2)
    assert row.whole == pytest.approx(0.555, abs=0.002)
    assert row.input == pytest.approx(0.333, abs=0.002)
    assert row.cold.usd / row.naive.usd == pytest.approx(1.166, abs=0.002)
    assert 3000 < row.enough < 3200


async def test_below_the_minimum_nothing_is_marked_and_nothing_costs_more() -> None:
    row = await measure(Setting("claude-haiku-5-5", 4096), states=2, latency_s=0.1)
    assert row.naive.usd == row.cold.usd == row.led.usd
    assert "nothing is marked" in report([row], 0.1)


@pytest.mark.slow
async def test_a_shared_system_prompt_is_read_by_the_states_that_come_later() -> None:
    """States come eight at a time: the ninth finds what the first wrote."""
    setting = Setting("claude-sonnet-5", 1024, system=1500)
    one, many = [await measure(setting, states, 0.1) for states in (8, 16)]
    assert one.whole == pytest.approx(0.555, abs=0.002)
    assert many.whole < one.whole - 0.01


def test_the_break_even_is_where_the_ratio_is_the_goal() -> None:
    naive = Played(usd=10.0, input_usd=6.0, state_s=1.0)
    led = Played(usd=6.0, input_usd=2.0, state_s=1.0)
    row = Row(Setting("m", 512, context=3000), 1, naive, naive, led)
    scale = row.enough / 3000
    assert (2.0 * scale + 4.0) / (6.0 * scale + 4.0) == pytest.approx(GOAL)
    assert "missed on the whole bill (0.600), met on input alone (0.333)" in report([row], 1.0)


def test_a_ledger_that_differs_from_the_bill_is_an_error() -> None:
    bill = Bill(Options(), usd=1.0)
    _agree(1.0, bill)
    with pytest.raises(RuntimeError, match="ledger counts"):
        _agree(1.001, bill)
