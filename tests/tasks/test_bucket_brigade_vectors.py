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

from orchestry import Tools
from orchestry.core.errors import ConfigError
from orchestry.task.registry import load_task
from orchestry.task.vector import VectorTask

pytest.importorskip("numba")
load_task("bucket_brigade")
GAME, KERNEL, EXPERTS, SCENARIOS, TASK = (
    import_module(f"orchestry_tasks.bucket_brigade.{name}")
    for name in ("game", "kernel", "experts", "scenario", "task")
)
TRACE = Path(__file__).with_name("bucket_brigade_trace.jsonl")
RECORDED = [json.loads(line) for line in TRACE.read_text().splitlines()]
ONE_PHASE = [
    number
    for number, game in enumerate(RECORDED)
    if game["rules"].get("commitment_mode") != "two_phase"
]
WORDS = ("rest", "work")


def task(**options: Any) -> Any:
    return load_task("bucket_brigade", options=options)


@pytest.mark.parametrize("number", ONE_PHASE)
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
        said = (
            f"house {house}, {WORDS[mode]}, signal {WORDS[signal]}" for house, mode, signal in acts
        )
        state = own.step(state, {f"agent_{n}": text for n, text in enumerate(said)})
        KERNEL.step(rules, on, seen, np.array([acts], np.int8), luck, luck)
        assert tuple(seen.rewards[0]) == state.rewards[-1]
        assert state.rewards[-1] == pytest.approx(night["rewards"], abs=1e-3)
        earned += night["rewards"]
    score = await own.evaluate(state, tools)
    assert score.returns == pytest.approx(earned.tolist(), abs=1e-2)


async def test_texts_have_no_returns(tools: Tools) -> None:
    own = load_task("tldr")
    state = own.reset(own.problems("train")[0], 0)
    assert (await own.evaluate(state, tools)).returns == ()


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
        acts = np.stack([draw.integers(0, size, (games, 4)) for size in on.choices], -1)
        acts = acts.astype(np.int8)
        acts[:, list(seats)] = found
        on.step(acts)
        begun = on.ended | on.cut


@pytest.mark.parametrize("name", ["coordinator", "rest_trap", "random"])
def test_a_restored_script_goes_on(name: str) -> None:
    own = task(scenario="default_continuous")
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


def test_restored_games_go_on_bit_for_bit() -> None:
    own = task(scenario="hard")
    one, other = own.vectors(6, 1), own.vectors(6, 2)
    draw = np.random.default_rng(0)
    for _ in range(40):
        sizes = zip(one.choices, strict=True)
        acts = np.stack([draw.integers(0, size, (6, 4)) for (size,) in sizes], -1).astype(np.int8)
        other.restore(one.state())
        one.step(acts)
        other.step(acts)
        assert (one.observations == other.observations).all()
        assert (one.rewards == other.rewards).all()
    assert isinstance(own, VectorTask)


def test_what_arrays_do_not_offer_is_refused() -> None:
    with pytest.raises(ConfigError, match="one phase"):
        task(rules={"commitment_mode": "two_phase"}).vectors(1, 0)
    with pytest.raises(ConfigError, match="nobody"):
        task().script("nobody", (0,), 1, 0)
