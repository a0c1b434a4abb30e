"""Our rules against upstream's recorded games, the texts, the reward, and the scripted agents."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry import Tools
from orchestry.core.errors import ConfigError
from orchestry.core.types import MAX_CHARS, SPLITS
from orchestry.task.check import check_task
from orchestry.task.registry import load_task

TASK: Any = load_task("bucket_brigade")
GAME, TEXT, EXPERTS, SCENARIOS = (
    import_module(f"orchestry_tasks.bucket_brigade.{name}")
    for name in ("game", "text", "experts", "scenario")
)
TRACE = Path(__file__).with_name("bucket_brigade_trace.jsonl")
RECORDED = [json.loads(line) for line in TRACE.read_text().splitlines()]
TEAM = tuple(f"agent_{number}" for number in range(4))


def task(**options: Any) -> Any:
    return load_task("bucket_brigade", options=options)


def played(own: Any, seed: int, *names: str) -> Any:
    """The end of a game of scripted agents; one name: all are of that kind."""
    state = own.reset(own.problems("train")[seed], 0)
    agents = range(own.scenario.num_agents)
    seats = [EXPERTS.Seat(own.scenario, n, random.Random(f"{seed}:{n}")) for n in agents]
    kinds = names * len(seats) if len(names) == 1 else names
    while own.to_act(state):
        pairs = zip(kinds, seats, strict=True)
        state = own.play(state, [EXPERTS.EXPERTS[kind](seat, state.ring) for kind, seat in pairs])
    return state


def within_bounds(own: Any, lit: int, rewards: Sequence[Sequence[float]]) -> bool:
    """Whether a game's mean per night is. The `lit` fires of the first evening cost nothing, so
    each may bring what it is worth to save a house, once, beyond the bounds."""
    low, high = own.bounds
    others = own.num_agents - 1
    saved = own.reward_own_house_survives + own.reward_other_house_survives * others
    total = sum(map(fmean, rewards))
    most = high * len(rewards) + lit * saved / own.num_agents
    return bool(low * len(rewards) - 1e-6 <= total <= most + 1e-6)


def mean_return(own: Any, *names: str, games: int = 24) -> float:
    return fmean(fmean(own.returns(played(own, seed, *names))) for seed in range(games))


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_upstreams_games_come_out_equal_night_by_night(number: int) -> None:
    game = RECORDED[number]
    scenario = SCENARIOS.scenario(game["scenario"], game["rules"])
    first, *nights = game["nights"]
    ring = GAME.begin(scenario, GAME.draws(game["seed"], -1, scenario.num_houses))
    assert [*ring.houses] == first["houses"]
    for night in nights:
        acts = [GAME.Action(*act) for act in night["acts"]]
        luck = GAME.draws(game["seed"], ring.night, scenario.num_houses)
        ring, rewards = GAME.play(scenario, ring, acts, luck)
        assert [*ring.houses] == night["houses"]
        assert rewards == pytest.approx(night["rewards"], abs=1e-3)
        assert ring.done is night["done"]


def test_the_record_has_all_scenarios_and_every_mode() -> None:
    assert {game["scenario"] for game in RECORDED} == {*SCENARIOS.names()}
    assert len(SCENARIOS.names()) == 18
    changed = {(key, value) for game in RECORDED for key, value in game["rules"].items()}
    assert changed >= {
        ("extinguish_mode", "continuous"),
        ("action_validity_mode", "adjacent_only"),
        ("commitment_mode", "two_phase"),
    }
    states = {house for game in RECORDED for night in game["nights"] for house in night["houses"]}
    assert states == {GAME.SAFE, GAME.BURNING, GAME.RUINED}


def test_a_fire_burns_out_unless_somebody_works_there() -> None:
    scenario = SCENARIOS.scenario("default", {"prob_solo_agent_extinguishes_fire": 1.0})
    ring = GAME.begin(scenario, [0.0] * 40)
    assert set(ring.houses) == {GAME.BURNING}
    acts = [GAME.Action(2, GAME.WORK), *[GAME.Action(3)] * 3]
    after, rewards = GAME.play(scenario, ring, acts, [0.5] * 40)
    assert [house for house, state in enumerate(after.houses) if state == GAME.SAFE] == [2]
    # a tenth is safe, nine tenths are ruined; agent 2 owns house 2 and loses one other, 0 loses 3
    assert rewards[0] == pytest.approx(10 - 90 - 0.5 - 3 * 40)
    assert rewards[2] == pytest.approx(10 - 90 + 0.5 + 20 - 40)


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_recorded_games_are_within_the_bounds(number: int) -> None:
    game = RECORDED[number]
    own = SCENARIOS.scenario(game["scenario"], game["rules"])
    first, *nights = game["nights"]
    lit = first["houses"].count(GAME.BURNING)
    assert within_bounds(own, lit, [night["rewards"] for night in nights])


@pytest.mark.parametrize("name", SCENARIOS.names())
@pytest.mark.parametrize("kind", ["sparse_hero", "always_rest", "random"])
def test_no_teams_total_is_cut_to_the_bounds(name: str, kind: str) -> None:
    own = task(scenario=name)
    for seed in range(8):
        state = played(own, seed, kind)
        lit = own.reset(own.problems("train")[seed], 0).ring.houses.count(GAME.BURNING)
        assert within_bounds(own.scenario, lit, state.rewards)


@pytest.mark.parametrize("change", [{}, {"num_agents": 3, "num_houses": 8}, {"num_houses": 6}])
@pytest.mark.parametrize("name", SCENARIOS.names())
def test_bounds_are_reached(name: str, change: dict[str, int]) -> None:
    """By ruins that all work far from, and by what pays most: rest, or as many saved houses as can
    burn again in turn."""
    own = SCENARIOS.scenario(name, {**change, "agent_home_positions": ()})
    houses, agents = own.num_houses, range(own.num_agents)
    low, high = own.bounds
    blank = GAME.begin(own, [1.0] * 4 * houses)

    def night(states: Sequence[int], works: Callable[[int], bool], *lit: int) -> float:
        """The mean reward, if these houses catch fire and each agent that works is half the ring
        away or where its number burns."""
        ring = replace(blank, houses=tuple(states), progress=(0.99,) * houses)
        far = houses // 2 * (GAME.RUINED in states)
        acts = [GAME.Action((agent + far) % houses, works(agent)) for agent in agents]
        luck = [0.0] * houses + [1.0] * 3 * houses
        for house in lit:
            luck[3 * houses + house] = 0.0
        return fmean(GAME.play(own, ring, acts, luck)[1])

    assert night([GAME.RUINED] * houses, lambda agent: True) == pytest.approx(low)
    turns = min(own.num_agents, houses // 2)
    fires = [GAME.BURNING] * turns + [GAME.SAFE] * (houses - turns)
    saving = night(fires, lambda agent: agent < turns, *range(turns, 2 * turns))
    resting = night([GAME.SAFE] * houses, lambda agent: False)
    assert max(saving, resting) == pytest.approx(high)


@given(seed=st.integers(0, 1000), name=st.sampled_from(SCENARIOS.names()))
def test_equal_games_are_equal_and_returns_are_within_their_bounds(seed: int, name: str) -> None:
    own = task(scenario=name, rules={"prob_house_catches_fire": 0.4} if seed % 2 else {})
    problem = own.problems("train")[seed % 64]
    ends = []
    for _ in range(2):
        source, state = random.Random(seed), own.reset(problem, seed)
        while own.to_act(state) and state.ring.night < 15:
            seats = [EXPERTS.Seat(own.scenario, n, source) for n in range(4)]
            state = own.play(state, [EXPERTS.random_play(seat, state.ring) for seat in seats])
        ends.append(state)
    assert ends[0] == ends[1]
    assert hash(ends[0]) == hash(ends[1])
    lit = own.reset(problem, seed).ring.houses.count(GAME.BURNING)
    assert within_bounds(own.scenario, lit, ends[0].rewards)


# --- the task -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_task_passes_its_check(tools: Tools) -> None:
    findings = await check_task(TASK, tools.sandbox, seeds=(0,))
    assert [finding for finding in findings if not finding.ok] == []


def test_games_of_splits_are_others() -> None:
    ids = [problem.id for split in SPLITS for problem in TASK.problems(split)]
    assert len(ids) == len(set(ids)) == 152


async def test_answers_are_played_and_scored_by_the_teams_mean(tools: Tools) -> None:
    state = TASK.reset(TASK.problems("train")[0], 0)
    assert TASK.to_act(state) == TEAM
    while TASK.to_act(state):
        state = TASK.step(state, dict.fromkeys(TEAM, "house 0, rest, signal rest"))
    low, high = TASK.scenario.bounds
    score = await TASK.evaluate(state, tools)
    nightly = fmean(TASK.returns(state)) / len(state.rewards)
    assert score.total == pytest.approx((nightly - low) / (high - low))
    assert score.tags == ()
    assert len(state.rewards) >= TASK.scenario.min_nights + 1


async def test_unread_answers_rest_at_home_and_are_tagged(tools: Tools) -> None:
    state = TASK.reset(TASK.problems("train")[0], 0)
    said = dict.fromkeys(TEAM, "I go to house 3 and work there.") | {"agent_2": "let us wait"}
    state = TASK.step(state, said)
    assert state.ring.last[2] == GAME.Action(2)
    assert state.ring.last[0] == GAME.Action(3, GAME.WORK, GAME.WORK)
    assert (await TASK.evaluate(state, tools)).tags == ("unread answer",)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("house 3, work, signal work", (3, 1, 1)),
        ("House 9, REST, signal: work", (9, 0, 1)),
        ("Signal rest; house #4; work", (4, 1, 0)),
        ("I'm working at house 2 tonight.", (2, 1, 1)),
        ('{"house": 3, "mode": "work", "signal": "rest"}', (3, 1, 0)),
        ("**House**: 3\n**Action**: work\n**Signal**: rest", (3, 1, 0)),
        ("house: **3**, **work**, my signal is rest", (3, 1, 0)),
        ("<think>house 5 burns, rest?</think> house 3, work, signal work", (3, 1, 1)),
        ("I live at house 0. I go to house 4, work", (4, 1, 1)),
        ("The rest are safe. House 2, work.", (2, 1, 1)),
        ("No fires near me: I go to house 3 and work", (3, 1, 1)),
        ("house 3, working, signal resting", (3, 1, 0)),
        ("Should I work or rest? House 3, work, signal work", (3, 1, 1)),
        ("house 3, not work, signal rest", None),
        ("house 3, no work, signal rest", None),
        ("house 3, cannot work, signal rest", None),
        ("I won\u2019t work at house 3", None),
        ("house 3, work/rest, signal work/rest", None),
        ("house 3, work or rest, signal work or rest", None),
        ("house 3, work, signal work/rest", None),
        ("house 3, work/rest, signal work", None),
        ("house 3, do not work", None),
        ("I won't work at house 3", None),
        ("house 3, workshop", None),
        ("house 3, work, signal perhaps", None),
        ("house -3, work", None),
        ("house 3.7, work", None),
        ("house 0012, work", None),
        ("house \u0663, work", None),
        ("house 10, work", None),
        ("house two, work", None),
        ("house 3", None),
        ("", None),
    ],
)
def test_answers_are_read(said: str, expected: tuple[int, ...] | None) -> None:
    assert TEXT.action(said, TASK.scenario) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("announce work", 1),
        ("I announce resting.", 0),
        ("rest? No: I announce work", 1),
        ("work, or rest: I announce rest", 0),
        ("I won't work, I announce rest", None),
        ("I do not announce work", None),
        ("announce work, or rest", None),
        ("nothing", None),
    ],
)
def test_announcements_are_read(said: str, expected: int | None) -> None:
    assert TEXT.announced(said) == expected


@pytest.mark.parametrize("part", ["work" + " " * 99, "signal", "work or ", "house 3 ", "rest,"])
def test_a_longest_answer_is_read_at_once(part: str) -> None:
    """A pattern that goes back over what it read would take minutes."""
    said = (part * MAX_CHARS)[:MAX_CHARS]
    assert TEXT.action(said, SCENARIOS.scenario("default", {})) is None
    TEXT.announced(said)
    assert TEXT.action("work" + " " * MAX_CHARS, SCENARIOS.scenario("default", {})) is None


@given(st.text(max_size=60))
def test_reading_never_fails(said: str) -> None:
    found = TEXT.action(said, TASK.scenario)
    assert found is None or 0 <= found.house < 10


def test_agents_see_the_street_and_what_others_did_and_signalled() -> None:
    state = TASK.reset(TASK.problems("train")[0], 0)
    state = TASK.step(state, dict.fromkeys(TEAM, "house 3, rest, signal work"))
    seen = TASK.observe(state, "agent_1")
    assert "Night 1" in seen
    assert "Last night agent_0 rested at house 3 and signalled work." in seen
    assert "You are agent_1." in seen
    assert "Your houses: 1, 5, 9." in TASK.agents[1].system_prompt


def test_two_phases_announce_first_and_are_bound_by_nothing() -> None:
    own = task(rules={"commitment_mode": "two_phase"})
    state = own.reset(own.problems("train")[0], 0)
    assert "What do you announce?" in own.observe(state, "agent_0")
    state = own.step(state, dict.fromkeys(TEAM, "announce work"))
    assert state.ring.night == 0
    seen = own.observe(state, "agent_0")
    assert "Announced for tonight: agent_0 work" in seen
    state = own.step(state, dict.fromkeys(TEAM, "house 1, rest, signal rest"))
    assert state.ring.night == 1
    assert state.announcing
    assert {act.mode for act in state.ring.last} == {GAME.REST}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scenario": "defualt"}, "did you mean 'default'"),
        ({"scenario": "none.json"}, r"none.json can't be read \(No such file.*\): give a .json"),
        ({"rules": {"num_house": 3}}, "did you mean 'num_houses'"),
        (
            {"rules": {"agent_home_positions": [0, 1]}},
            "default: agent_home_positions has 2 homes for 4 agents: give",
        ),
        ({"rules": {"agent_home_positions": [0, 1, 2, 10]}}, "has house 10: give .* 0 to 9"),
        (
            {"rules": {"extinguish_mode": "continuous"}},
            "suppression_per_worker is 0, .* no fire can be put out: give",
        ),
        ({"agents": 11}, "agents"),
        ({"rules": {"team_penalty_house_burns": -1}}, "team_penalty_house_burns"),
        ({"rules": {"reward_rest": float("inf")}}, "reward_rest"),
        ({"rules": {"min_nights": 200}}, "raise it to 201"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        task(**options)


def test_a_scenario_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"num_houses": 3, "num_agents": 2, "min_nights": 2, "about": "Small."}')
    own = task(scenario=str(file))
    assert len(task(scenario=str(file), agents=3).agents) == 3
    file.with_name("list.json").write_text("[1, 2]")
    with pytest.raises(ConfigError, match=r"holds \[1, 2\]: give"):
        task(scenario=str(file.with_name("list.json")))
    assert own.scenario.owned(0) == (0, 2)
    assert own.problems("dev")[0].prompt == "Small."


def test_a_game_without_an_end_is_cut_off() -> None:
    own = task(scenario="default_continuous", max_nights=20)
    ends = [played(own, seed, "always_rest") for seed in range(24)]
    assert max(len(state.rewards) for state in ends) == 20
    assert any(own._cut_off(state) for state in ends)


async def test_who_lets_fires_burn_does_not_earn_by_the_longer_game(tools: Tools) -> None:
    own = task(scenario="default_continuous")

    async def mean(kind: str) -> float:
        return fmean(
            [(await own.evaluate(played(own, seed, kind), tools)).total for seed in range(12)]
        )

    assert await mean("sparse_hero") > await mean("random") > await mean("always_rest")


async def test_per_night_and_per_game_rank_teams_differently_in_one_scenario(tools: Tools) -> None:
    """As README.md says; by the team's total and by its return."""

    async def means(own: Any, kind: str) -> list[float]:
        ends = [played(own, seed, kind) for seed in range(6)]
        totals = [(await own.evaluate(state, tools)).total for state in ends]
        return [fmean(totals), fmean(fmean(own.returns(state)) for state in ends)]

    async def differ(own: Any) -> bool:
        pairs = zip(await means(own, "guard"), await means(own, "always_work"), strict=True)
        return len({guard > works for guard, works in pairs}) == 2

    names = SCENARIOS.names()
    assert [name for name in names if await differ(task(scenario=name))] == ["default_continuous"]


def test_agents_are_told_what_counts() -> None:
    said = task(rules={"penalty_other_house_burns": 2.5, "prob_house_catches_fire": 0.004})
    prompt = said.agents[0].system_prompt
    assert "You pay 2.5 per night while one of the others' houses is ruined." in prompt
    assert "0.4% chance per night" in prompt
    assert "ends when nothing burns after 12 nights" in prompt
    assert "others' houses" not in TASK.agents[0].system_prompt


# --- scripted agents ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_every_expert_plays_every_scenario(name: str) -> None:
    own = task(scenario=name, max_nights=24)
    for kind in EXPERTS.EXPERTS:
        assert played(own, 0, kind).rewards


def test_known_best_play_is_found_again() -> None:
    """What the scenarios' names promise."""
    quiet, own, shared = (
        task(scenario=name)
        for name in ("trivial_cooperation", "minimal_specialization", "deceptive_calm")
    )
    assert mean_return(quiet, "always_rest") > mean_return(quiet, "trivial_cooperator")
    assert mean_return(own, "guard") > mean_return(own, "random") + 100
    assert mean_return(shared, "honest_signaler") > mean_return(shared, "guard") + 100


def test_a_liar_signals_what_it_does_not_intend() -> None:
    own = task(scenario="hard")
    counts = {}
    for kind in ("hero", "liar"):
        ring = GAME.begin(own.scenario, [1.0] * 40)
        seat = EXPERTS.Seat(own.scenario, 1, random.Random(0))
        acts = [EXPERTS.EXPERTS[kind](seat, ring) for _ in range(400)]
        counts[kind] = fmean(act.signal for act in acts)
    assert counts["hero"] == 1.0
    # the liar's intent is 0.7 x 0.6 = 0.42: it would rest, and says so one time in ten
    assert counts["liar"] == pytest.approx(0.9, abs=0.05)
