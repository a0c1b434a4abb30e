"""The compiled games are those of the rules, bit for bit, given the same random numbers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.task.registry import load_task

pytest.importorskip("numba")
load_task("bucket_brigade")
GAME, KERNEL, SCENARIOS, ARRAYS = (
    import_module(f"orchestry_tasks.bucket_brigade.{name}")
    for name in ("game", "kernel", "scenario", "arrays")
)
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"num_agents": 3, "num_houses": 7, "prob_house_catches_fire": 0.3},
    {"action_validity_mode": "adjacent_only", "distance_cost_alpha": 0.3},
    {"extinguish_mode": "continuous", "suppression_per_worker": 0.3, "min_nights": 3},
    {"reward_other_house_survives": 2.5, "penalty_other_house_burns": 0.7, "min_nights": 0},
)
GAMES, NIGHTS, MAX = 3, 25, 11


def drawn(source: np.random.Generator, scenario: Any) -> tuple[Any, Any]:
    sizes = scenario.num_houses, 2, 2
    acts = [source.integers(0, size, (GAMES, scenario.num_agents)) for size in sizes]
    luck = source.random((GAMES, GAME.DRAWS * scenario.num_houses))
    return np.stack(acts, -1).astype(np.int8), luck


def told(scenario: Any, ring: Any) -> Any:
    """What all agents see, by the rules, (N, D)."""
    agents = range(scenario.num_agents)
    return np.stack([ARRAYS.observation(scenario, ring, agent, False) for agent in agents])


@settings(max_examples=3, deadline=None)
@given(change=st.sampled_from(CHANGES), seed=st.integers(0, 10_000))
@pytest.mark.parametrize("name", SCENARIOS.names())
@pytest.mark.slow
def test_compiled_games_are_equal_night_by_night(
    name: str, change: dict[str, Any], seed: int
) -> None:
    if "num_agents" in change and name == "positional_default":
        change = {**change, "agent_home_positions": (0, 3, 5)}
    scenario = SCENARIOS.scenario(name, change)
    source = np.random.default_rng(seed)
    rules = KERNEL.rules(scenario, MAX)
    on, seen = KERNEL.opened(scenario, GAMES, seed)
    _, luck = drawn(source, scenario)
    KERNEL.begin(rules, on, seen, luck)
    rings = [GAME.begin(scenario, row) for row in luck]
    for _ in range(NIGHTS):
        acts, luck = drawn(source, scenario)
        _, again = drawn(source, scenario)
        KERNEL.step(rules, on, seen, acts, luck, again)
        for game, ring in enumerate(rings):
            moves = [GAME.Action(*map(int, act)) for act in acts[game]]
            after, rewards = GAME.play(scenario, ring, moves, luck[game])
            assert tuple(seen.rewards[game]) == rewards
            assert seen.ended[game] == after.done
            assert seen.cut[game] == (not after.done and after.night >= MAX)
            over = seen.ended[game] or seen.cut[game]
            if over:
                assert (seen.final[game] == told(scenario, after)).all()
            rings[game] = after = GAME.begin(scenario, again[game]) if over else after
            assert tuple(on.houses[game]) == after.houses
            assert tuple(on.progress[game]) == after.progress
            assert [tuple(act) for act in on.acts[game]] == [*map(tuple, after.last)]
            assert (seen.observations[game] == told(scenario, after)).all()


def test_two_phases_announce_then_play() -> None:
    scenario = SCENARIOS.scenario("default", {"commitment_mode": "two_phase"})
    rules = KERNEL.rules(scenario, MAX)
    on, seen = KERNEL.opened(scenario, 2, 0)
    KERNEL.begin(rules, on, seen, KERNEL.NO_LUCK)
    acts = np.ones((2, 4, 3), np.int8)
    KERNEL.step(rules, on, seen, acts, KERNEL.NO_LUCK, KERNEL.NO_LUCK)
    assert on.promised.tolist() == [[1] * 4] * 2
    assert on.night.tolist() == [0, 0]
    assert not seen.rewards.any()
    assert (seen.observations[:, :, 38:42] == 1).all()
    KERNEL.step(rules, on, seen, acts, KERNEL.NO_LUCK, KERNEL.NO_LUCK)
    assert on.night.tolist() == [1, 1]
    assert on.announcing.all()
    assert seen.rewards.all()


def test_observations_say_what_all_see_and_who_looks() -> None:
    scenario = SCENARIOS.scenario("hard", {})
    on, seen = KERNEL.opened(scenario, 2, 0)
    rules = KERNEL.rules(scenario, 100)
    KERNEL.begin(rules, on, seen, KERNEL.NO_LUCK)
    acts = np.array([[[3, 1, 0], [9, 0, 1], [2, 1, 1], [0, 0, 0]]] * 2, np.int8)
    KERNEL.step(rules, on, seen, acts, KERNEL.NO_LUCK, KERNEL.NO_LUCK)
    row = seen.observations[1, 2]
    assert row.shape == (KERNEL.width(scenario),) == (42,)
    assert row[10:14].tolist() == [0, 1, 1, 0]  # signals
    assert row[14:18].tolist() == [3, 9, 2, 0]  # places
    assert row[18:26].tolist() == [3, 1, 9, 0, 2, 1, 0, 0]
    assert row[26:38].tolist() == KERNEL.facts(scenario).tolist()
    assert row[38:].tolist() == [0, 0, 1, 0]


def test_own_random_numbers_are_uniform_seeded_and_different_in_each_game() -> None:
    scenario = SCENARIOS.scenario("default", {"prob_house_catches_fire": 0.3})
    rules = KERNEL.rules(scenario, 100)
    lit = []
    for seed in (1, 1, 2):
        on, seen = KERNEL.opened(scenario, 4000, seed)
        KERNEL.begin(rules, on, seen, KERNEL.NO_LUCK)
        lit.append(on.houses == GAME.BURNING)
    assert (lit[0] == lit[1]).all()
    assert (lit[0] != lit[2]).any()
    assert abs(lit[0].mean(0) - 0.3).max() < 0.03  # each house; 4 standard errors
    assert len({tuple(row) for row in lit[0]}) > 500
