"""The planted judge is as unreliable as it is meant to be, and reads the real prompts."""

from __future__ import annotations

import pytest

from benchmarks.quality.judge import SHAPE_NAMES, WAYS, confirm, measure, play, section
from benchmarks.quality.planted_judge import (
    FIRST,
    FLIPS,
    SHAPES,
    Planted,
    Temper,
    calibrate,
    family,
    qualities,
)

GROUPS = qualities(40, 4, seed=1)
FAMILIES = [family(number, 4) for number in range(40)]
EXACT = Temper(noise=0.0, bias=0.0)


async def test_it_flips_and_favours_the_first_as_often_as_planted() -> None:
    found = await confirm(GROUPS, FAMILIES, calibrate(GROUPS))
    assert found["flips"] == pytest.approx(FLIPS, abs=0.03)
    assert found["first"] == pytest.approx(FIRST, abs=0.03)


@pytest.mark.parametrize("way", WAYS)
async def test_without_noise_and_bias_every_way_finds_the_order(way: str) -> None:
    groups = [(-1.5, 0.9, -0.6, 2.1)] * 5
    found = await measure(groups, FAMILIES[:5], EXACT, WAYS[way])
    assert found["mean"] == pytest.approx(1.0)


async def test_tokens_are_those_of_the_prompts() -> None:
    policy = Planted(GROUPS, EXACT)
    await WAYS["all pairs, both orders"](policy, FAMILIES[0])
    assert policy.calls == 12
    texts = 12 * 4 * 150 * 4  # problem, turn before and two candidates, of 150 tokens each
    assert texts < policy.asked < 2 * texts
    assert policy.answered == 12 * len('{"better": "A"}')


async def test_mixed_orders_beat_one_order() -> None:
    temper = calibrate(GROUPS)
    fixed, mixed = [
        await measure(GROUPS, FAMILIES, temper, WAYS[way])
        for way in ("naive: one order, mean of 4 calls", "listwise, repeats 4")
    ]
    assert mixed["mean"] > fixed["mean"] + 0.1
    assert mixed["calls"] == fixed["calls"] == 4


def test_every_form_of_bias_is_the_same_in_pairs() -> None:
    assert SHAPES.keys() == SHAPE_NAMES.keys()
    for shape in SHAPES:
        first, second = Temper(noise=0.0, bias=0.7, shape=shape).places(2)
        assert first - second == pytest.approx(0.7)


def test_the_section_shows_every_way_and_form() -> None:
    text = section(play(4, seed=2))
    for name in [*WAYS, *SHAPE_NAMES.values(), "Within the goal", "4 siblings", "8 siblings"]:
        assert name in text
    assert "Goal, for the default (listwise, repeats 2), at every form of the bias" in text
