"""The game as arrays, and raw returns that are the same by text, by arrays and upstream."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import Tools
from orchestry.core.errors import ConfigError
from orchestry.task.registry import load_task
from orchestry.task.vector import VectorTask

pytest.importorskip("numba")
load_task("bucket_brigade")
GAME, KERNEL, EXPERTS, SCENARIOS, ARRAYS = (
    import_module(f"orchestry_tasks.bucket_brigade.{name}")
    for name in ("game", "kernel", "experts", "scenario", "arrays")
)
TRACE = Path(__file__).with_name("bucket_brigade_trace.jsonl")
RECORDED = [json.loads(line) for line in TRACE.read_text().splitlines()]
WORDS = ("rest", "work")
TWO_PHASES = {"commitment_mode": "two_phase"}


def task(**options: Any) -> Any:
    return load_task("bucket_brigade", options=options)


def texts(acts: Any, announcing: bool) -> dict[str, str]:
    """The same actions in words."""
    if announcing:
        return {f"agent_{n}": WORDS[act[2]] for n, act in enumerate(acts)}
    return {
        f"agent_{n}": f"house {house}, {WORDS[mode]}, signal {WORDS[signal]}"
        for n, (house, mode, signal) in enumerate(acts)
    }


def chosen(source: np.random.Generator, choices: Any, games: int, agents: int) -> Any:
    """Random actions of all."""
    drawn = [source.integers(0, size, (games, agents)) for size in choices]
    return np.stack(drawn, -1).astype(np.int8)


@pytest.mark.parametrize("number", range(len(RECORDED)))
async def test_recorded_actions_earn_the_same_by_text_by_arrays_and_upstream(
    number: int, tools: Tools
) -> None:
    recorded = RECORDED[number]
    own = task(scenario=recorded["scenario"], rules=recorded["rules"])
    scenario, nights = own.scenario, recorded["nights"][1:]
    agents = range(scenario.num_agents)
    state = own.reset(own.problems("train")[0], 0)
    first = GAME.draws(recorded["seed"], -1, scenario.num_houses)
    state = replace(state, luck=recorded["seed"], ring=GAME.begin(scenario, first))
    on, seen = KERNEL.opened(scenario, 1, 0)
    rules = KERNEL.rules(scenario, 10_000)
    KERNEL.begin(rules, on, seen, np.array([first]))
    earned = np.zeros(len(agents))
    for night in nights:
        luck = np.array([GAME.draws(recorded["seed"], state.ring.night, scenario.num_houses)])
        acts = night["acts"]
        for announcing in [True, False] if state.announcing else [False]:  # it binds nobody
            state = own.step(state, texts(acts, announcing))
            KERNEL.step(rules, on, seen, np.array([acts], np.int8), luck, luck)
        assert tuple(seen.rewards[0]) == state.rewards[-1]
        assert state.rewards[-1] == pytest.approx(night["rewards"], abs=1e-3)
        earned += night["rewards"]
    score = await own.evaluate(state, tools)
    assert score.returns == pytest.approx(earned.tolist(), abs=1e-2)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(SCENARIOS.names()),
    change=st.sampled_from(({}, {"extinguish_mode": "continuous", "suppression_per_worker": 0.3})),
    seed=st.integers(0, 10_000),
)
def test_two_phases_are_equal_by_text_and_by_arrays(
    name: str, change: dict[str, Any], seed: int
) -> None:
    own = task(scenario=name, rules={**TWO_PHASES, **change, "min_nights": 6}, max_nights=14)
    scenario, source = own.scenario, np.random.default_rng(seed)
    problem, houses = own.problems("train")[0], scenario.num_houses
    state = own.reset(problem, seed)
    first = np.array([GAME.draws(state.luck, -1, houses)])
    rules = KERNEL.rules(scenario, 14)
    on, seen = KERNEL.opened(scenario, 1, 0)
    KERNEL.begin(rules, on, seen, first)
    while own.to_act(state):
        assert on.announcing[0] == state.announcing
        (acts,) = chosen(source, (houses, 2, 2), 1, 4)
        luck = np.array([GAME.draws(state.luck, state.ring.night, houses)])
        played, state = state, own.step(state, texts(acts, state.announcing))
        KERNEL.step(rules, on, seen, acts[None], luck, first)
        paid = (0.0,) * 4 if played.announcing else state.rewards[-1]
        assert tuple(seen.rewards[0]) == paid
        last = seen.observations if own.to_act(state) else seen.final
        for agent in range(4):
            told = ARRAYS.observation(scenario, state.ring, agent, state.announcing)
            told[ARRAYS.phase(scenario)] = 0  # the kernel leaves it to `Games`
            assert (last[0, agent] == told).all()
    assert seen.ended[0] == state.ring.done
    assert seen.cut[0] == (not state.ring.done)
    assert on.announcing[0]  # a new game has begun


def test_observations_say_which_phase_is_on() -> None:
    own = task(scenario="hard", rules=TWO_PHASES)
    on, draw, ends = own.vectors(5, 1), np.random.default_rng(2), 0
    phase = ARRAYS.phase(own.scenario)
    for step in range(80):
        assert (on.observations[..., phase] == (step % 2 == 0)).all()
        acts = chosen(draw, on.choices, 5, 4)
        on.step(acts)
        over = on.ended | on.cut
        ends += over.sum()
        assert (on.final[over][..., phase] == 1).all()
        if step % 2 == 0:
            assert (on.observations[:, 3, phase - 4 : phase] == acts[:, :, 2]).all()
            assert not on.rewards.any()
            assert not over.any()
    assert ends > 5


async def test_texts_have_no_returns(tools: Tools) -> None:
    own = load_task("tldr")
    state = own.reset(own.problems("train")[0], 0)
    assert (await own.evaluate(state, tools)).returns == ()


@pytest.mark.parametrize("shape", [(2, 4, 3), (0, 4, 3), (5, 3, 3), (5, 4, 2), (5, 4)])
def test_actions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    on = task().vectors(5, 1)
    with pytest.raises(ValueError, match=r"expected whole numbers of shape .* = \(5, 4, 3\)"):
        on.step(np.zeros(shape, np.int8))
    with pytest.raises(ValueError, match="type float64"):
        on.step(np.zeros((5, 4, 3)))


@pytest.mark.parametrize("name", sorted(EXPERTS.EXPERTS))
def test_scripted_agents_decide_once_a_night_and_announce_their_signal(name: str) -> None:
    one, two = task(scenario="hard"), task(scenario="hard", rules=TWO_PHASES)
    on, plain = two.vectors(3, 5), one.vectors(3, 5)
    script, asked = (own.script(name, (0, 2), 3, 7) for own in (two, one))
    begun, draw = np.ones(3, np.bool_), np.random.default_rng(3)
    for step in range(60):
        found = script.act(on.observations[:, [0, 2]], begun)
        if step % 2 == 0:
            decided = asked.act(plain.observations[:, [0, 2]], begun)
        assert (found == decided).all()
        acts = chosen(draw, on.choices, 3, 4)
        acts[:, [0, 2]] = found
        on.step(acts)
        if step % 2:
            plain.step(acts)
        begun = on.ended | on.cut


@pytest.mark.parametrize("name", sorted(EXPERTS.EXPERTS))
def test_scripted_agents_play_arrays_as_they_play_texts(name: str) -> None:
    own, seats, games = task(scenario="hard"), (0, 2), 3
    on = own.vectors(games, 5)
    script = own.script(name, seats, games, 7)
    source = random.Random(f"7:{name}")
    places = [[EXPERTS.Seat(own.scenario, n, source) for n in seats] for _ in range(games)]
    begun, draw = np.ones(games, np.bool_), np.random.default_rng(3)
    for _ in range(30):
        seen = on.observations
        found = script.act(seen[:, list(seats)], begun)
        for game in range(games):
            if begun[game]:
                places[game] = [EXPERTS.Seat(own.scenario, n, source) for n in seats]
            state = on.state()
            last = tuple(GAME.Action(*map(int, act)) for act in state["acts"][game])
            houses = tuple(map(int, state["houses"][game]))
            ring = GAME.Ring(houses, last, (0,) * 4, (0.0,) * 10)
            for place, seat in enumerate(places[game]):
                assert tuple(found[game, place]) == EXPERTS.EXPERTS[name](seat, ring)
        acts = chosen(draw, on.choices, games, 4)
        acts[:, list(seats)] = found
        on.step(acts)
        begun = on.ended | on.cut


@pytest.mark.parametrize("rules", [{}, TWO_PHASES])
@pytest.mark.parametrize("name", ["coordinator", "rest_trap", "random"])
def test_a_restored_script_goes_on(name: str, rules: dict[str, str]) -> None:
    own = task(scenario="default_continuous", rules=rules)
    on, one = own.vectors(4, 1), own.script(name, (1, 3), 4, 2)
    begun = np.ones(4, np.bool_)

    def step(script: Any) -> Any:
        return script.act(on.observations[:, [1, 3]], begun)

    for _ in range(5):
        acts = np.zeros((4, 4, 3), np.int8)
        acts[:, [1, 3]] = step(one)
        on.step(acts)
        begun = on.ended | on.cut
    other = own.script(name, (1, 3), 4, 9)
    other.restore(one.state())
    assert (step(one) == step(other)).all()


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_an_agent_sees_what_upstreams_trainer_shows_it(number: int) -> None:
    recorded = RECORDED[number]
    scenario = SCENARIOS.scenario(recorded["scenario"], recorded["rules"])
    ring = GAME.begin(scenario, GAME.draws(recorded["seed"], -1, scenario.num_houses))
    for night in recorded["nights"][1:]:
        luck = GAME.draws(recorded["seed"], ring.night, scenario.num_houses)
        acts = [GAME.Action(*act) for act in night["acts"]]
        ring = replace(ring, promised=tuple(night.get("said", ring.promised)))
        ring, _ = GAME.play(scenario, ring, acts, luck)
        if "seen" in night:
            agent = (ring.night - 1) // 8 % scenario.num_agents
            own = ARRAYS.observation(scenario, ring, agent, False)
            if ARRAYS.two_phases(scenario):  # theirs does not say which phase is on
                own = np.delete(own, ARRAYS.phase(scenario))
            assert own == pytest.approx(night["seen"], abs=1e-3)


@pytest.mark.parametrize("wrong", [99, -1])
def test_an_action_that_is_none_is_refused_before_it_is_played(wrong: int) -> None:
    on = task(scenario="hard").vectors(4, 0)
    before, acts = on.state(), np.zeros((4, 4, 3), np.int8)
    acts[2, 1, 0] = wrong
    with pytest.raises(ValueError, match=r"from 0 to below \(10, 2, 2\)"):
        on.step(acts)
    assert all((before[name] == array).all() for name, array in on.state().items())


def test_restored_games_go_on_bit_for_bit() -> None:
    own = task(scenario="hard")
    one, other = own.vectors(6, 1), own.vectors(6, 2)
    draw = np.random.default_rng(0)
    for _ in range(40):
        acts = chosen(draw, one.choices, 6, 4)
        other.restore(one.state())
        one.step(acts)
        other.step(acts)
        assert (one.observations == other.observations).all()
        assert (one.rewards == other.rewards).all()
    assert isinstance(own, VectorTask)


def test_an_unknown_script_is_refused() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        task().script("nobody", (0,), 1, 0)
