"""The planted games' exact credits, the figures' arithmetic, and a small run of each table."""

from __future__ import annotations

import math
from itertools import product

import pytest

from benchmarks.quality.credit import (
    SETTINGS,
    blame_table,
    correlation,
    credit_table,
    ranks,
    verdict,
)
from benchmarks.quality.games import Game, faulty, interacting, named
from orchestry.core.config import CreditConfig


@pytest.mark.parametrize("joint", [True, False])
def test_exact_credits_add_up_and_have_no_bias(joint: bool) -> None:
    """Over all plays, each weighed by its chance, every agent's credit is zero in the mean."""
    game = interacting(3, joint)
    mean, total = dict.fromkeys(game.roles, 0.0), 0.0
    for actions in product(range(3), repeat=4):
        chance = math.prod(game.chance(actions[:i])[a] for i, a in enumerate(actions))
        credit = game.credit(actions)
        gain = game.scores[actions] - game.value(())
        assert sum(credit.values()) == pytest.approx(gain)
        for role, value in credit.items():
            mean[role] += chance * value
        total += chance
    assert total == pytest.approx(1.0)
    assert list(mean.values()) == pytest.approx([0.0] * len(mean))


def test_an_additive_games_credits_are_its_own_effects() -> None:
    scores = {so_far: sum(so_far) / 2 for n in range(3) for so_far in product(range(2), repeat=n)}
    chances = (((0.75, 0.25),) * 2, ((0.5, 0.5),) * 2)
    for joint in (True, False):
        game = Game(("a", "b"), joint, chances, scores)
        assert game.credit((1, 0)) == {"a": pytest.approx(0.375), "b": pytest.approx(-0.25)}


def test_a_faulty_agents_success_is_worth_most() -> None:
    assert named("faulty 2 1").chances == faulty(2, joint=True).chances
    credit = faulty(2, joint=True).credit((1, 1, 1, 1))
    assert max(credit, key=credit.__getitem__) == "c"


def test_correlation_and_ranks() -> None:
    assert correlation([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(1.0)
    assert correlation([(0.0, 1.0), (1.0, 0.0)]) == pytest.approx(-1.0)
    assert math.isnan(correlation([(0.0, 1.0), (0.0, 2.0)]))
    assert ranks([0.5, 0.1, 0.5]) == [2.5, 1.0, 2.5]


@pytest.mark.slow
async def test_small_tables_have_a_row_a_setting() -> None:
    credit, _ = await credit_table(15, seed=0)
    assert len(credit.splitlines()) == 2 + 3 * len(SETTINGS)
    blamed, _ = await blame_table(2, seed=0)
    assert len(blamed.splitlines()) == 2 + 2 * len(SETTINGS)


def test_the_verdict_names_the_share_and_the_default() -> None:
    reached = {
        CreditConfig(method="replay", share=1.0): [0.9, 0.8],
        CreditConfig(method="replay", share=0.1): [0.79, 0.95],
    }
    assert verdict(reached, 0.8) == (
        "met at share 1 (0.80 to 0.90 by kind of game); "
        "missed at share 0.1, the default (0.79 to 0.95 by kind of game)"
    )
