"""The game behind PettingZoo's and Gymnasium's interfaces, held to those packages' own tests."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from orchestry.core.errors import ConfigError
from orchestry.task.registry import load_task

for needed in ("numba", "gymnasium", "pettingzoo"):
    pytest.importorskip(needed)
load_task("bucket_brigade")
ENVS = import_module("orchestry_tasks.bucket_brigade.envs")
TWO_PHASES = {"commitment_mode": "two_phase"}


@pytest.mark.filterwarnings("ignore")  # of their own
@pytest.mark.parametrize("rules", [{}, TWO_PHASES])
def test_the_parallel_game_passes_pettingzoos_tests(rules: dict[str, str]) -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    parallel_api_test(ENVS.ParallelGame(scenario="hard", agents=5, rules=rules), num_cycles=60)
    parallel_seed_test(lambda: ENVS.ParallelGame(scenario="hard", rules=rules), num_cycles=30)


@pytest.mark.filterwarnings("ignore")
def test_vectors_pass_gymnasiums_checks_of_data() -> None:
    from gymnasium.utils.env_checker import data_equivalence
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    games: Any = RecordEpisodeStatistics(ENVS.VectorGames(64, scenario="hard"))
    first, _ = games.reset(seed=3)
    again, _ = games.reset(seed=3)
    other, _ = games.reset()
    assert data_equivalence(first, again, exact=True)
    assert not data_equivalence(first, other, exact=True)
    games.action_space.seed(0)
    lengths = []
    for _ in range(80):
        seen, rewards, ended, cut, info = games.step(games.action_space.sample())
        assert games.observation_space.contains(seen)
        assert rewards == pytest.approx(info["agent_rewards"].sum(1))
        if (ended | cut).any():
            assert (info["_final_obs"] == (ended | cut)).all()
            finals = info["final_obs"][ended][:, :10]
            assert not (finals == 1).any()  # a game ends when nothing burns
            lengths += info["episode"]["l"][ended | cut].tolist()
    assert len(lengths) > 64
    assert min(lengths) >= 16  # at least min_nights + 1


def test_both_interfaces_play_the_same_game() -> None:
    """The array that one agent sees, by the rules and by the kernel."""
    game, arrays, kernel, scenarios = (
        import_module(f"orchestry_tasks.bucket_brigade.{name}")
        for name in ("game", "arrays", "kernel", "scenario")
    )
    for changes in ({}, {"num_agents": 7, "num_houses": 5}):
        scenario = scenarios.scenario("hard", changes)
        source = np.random.default_rng(0)
        luck = source.random((1, 4 * scenario.num_houses))
        on, seen = kernel.opened(scenario, 1, 0)
        kernel.begin(kernel.rules(scenario, 100), on, seen, luck)
        ring = game.begin(scenario, luck[0])
        for agent in range(scenario.num_agents):
            expected = arrays.observation(scenario, ring, agent, False)
            assert (seen.observations[0, agent] == expected).all()


def test_a_night_of_two_phases_is_two_steps_of_both_interfaces() -> None:
    alone = ENVS.ParallelGame(scenario="hard", rules=TWO_PHASES)
    many: Any = ENVS.VectorGames(3, scenario="hard", rules=TWO_PHASES)
    seen, _ = alone.reset(seed=0)
    rows, _ = many.reset(seed=0)
    size = alone.observation_space("agent_0").shape[0]
    assert size == 47
    liar, honest = np.array([3, 0, 1]), np.array([4, 1, 0])
    first = {agent: liar if agent == "agent_2" else honest for agent in alone.agents}
    for announcing in (True, False) * 3:
        promised = [0, 0, 1, 0] if not announcing or alone._ring.night else [0] * 4
        for told in (seen["agent_1"], rows[1, size : 2 * size]):
            assert told[38:43].tolist() == [*promised, announcing]
            assert told[43:].tolist() == [0, 1, 0, 0]
        seen, paid, ended, cut, _ = alone.step(first)
        rows, rewards, *_ = many.step(np.tile([*honest, *honest, *liar, *honest], (3, 1)))
        assert any(paid.values()) != announcing
        assert rewards.any() != announcing
        assert not any({**ended, **cut}.values())
    assert alone._ring.night == 3


def test_what_is_no_action_is_refused() -> None:
    alone = ENVS.ParallelGame()
    alone.reset(seed=0)
    with pytest.raises(ValueError, match="from 0 to below"):
        alone.step(dict.fromkeys(alone.agents, np.array([10, 0, 0])))
    games = ENVS.VectorGames(2)
    games.reset(seed=0)
    for wrong in (99, 300, -1, 0.5):
        with pytest.raises(ValueError, match="from 0 to below"):
            games.step(np.full((2, 12), wrong))


def test_a_step_without_a_game_and_a_seed_per_game_are_refused() -> None:
    from gymnasium.error import ResetNeeded

    games = ENVS.VectorGames(3)
    for one, actions in ((ENVS.ParallelGame(), {}), (games, np.zeros((3, 12), int))):
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            one.step(actions)
    with pytest.raises(ValueError, match="seed of all games"):
        games.reset(seed=[1, None, 3])


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hard'"):
        ENVS.VectorGames(2, scenario="herd")
