"""The games of the variants: exact values, a learner that learns, and a row for each variant."""

from __future__ import annotations

import asyncio
import math
from itertools import product

import pytest

from benchmarks.quality.games import named
from benchmarks.quality.variants import (
    ANYWHERE,
    OF_A_BANK,
    PLAIN,
    Policy,
    Variant,
    compare,
    late,
    learned,
    locks,
)


def test_a_bank_opens_by_chance_at_first() -> None:
    game = locks(0)
    assert len(game.problems) == 30
    chances = [0.25 ** one.data["grade"] for one in game.problems]
    assert game.value(Policy({})) == pytest.approx(sum(chances) / 30)


@pytest.mark.parametrize("joint", [True, False])
def test_a_games_value_is_that_of_its_own_chances(joint: bool) -> None:
    game, planted = late(1, joint), named(f"late 1 {int(joint)}")
    plays = product(range(3), repeat=4)
    exact = sum(
        math.prod(planted.chance(play[:move])[play[move]] for move in range(4))
        * planted.scores[play]
        for play in plays
    )
    assert game.value(Policy(game.start)) == pytest.approx(exact)


@pytest.mark.parametrize("variant", [PLAIN, OF_A_BANK[-1]], ids=lambda one: one.name)
@pytest.mark.slow
def test_a_learner_reaches_the_threshold_and_again_the_same(variant: Variant) -> None:
    found = asyncio.run(learned(locks(0), variant, 0))
    assert found[2]
    assert found[0] < 100
    assert found == asyncio.run(learned(locks(0), variant, 0))


@pytest.mark.slow
def test_every_variant_has_a_row_beside_the_plain_one() -> None:
    text = asyncio.run(compare([late(seed, True) for seed in range(2)], ANYWHERE))
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [v.name for v in ANYWHERE]
    assert "Fewer samples than plain: " in text
