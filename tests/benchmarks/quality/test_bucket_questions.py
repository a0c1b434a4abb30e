"""The benchmark of four questions: its parts are played, kept, resumed by name, and reported."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.bucket_speed import module
from benchmarks.quality import bucket_answers, bucket_ppo, bucket_questions
from benchmarks.quality.bucket_questions import Part, Places, Tally, Told

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Parts that take seconds; kept lines lie in a folder of their own."""
    steps = dict.fromkeys(bucket_questions.STEPS, 4000)
    monkeypatch.setattr(bucket_questions, "STEPS", steps)
    monkeypatch.setattr(bucket_questions, "SEEDS", 1)
    monkeypatch.setattr(bucket_answers, "SEEDS", 1)
    monkeypatch.setattr(bucket_questions, "DEALS", 4)
    for part in (bucket_questions, bucket_ppo):
        monkeypatch.setattr(part, "GAMES", 8)
        monkeypatch.setattr(part, "FILE", tmp_path / f"{part.__name__}.jsonl")
    return Places(tmp_path / "runs", tmp_path / "own")


@pytest.mark.slow
def test_parts_of_all_questions_are_kept_and_reported(small: Places) -> None:
    with pytest.raises(bucket_questions.Waits, match="bucket_ppo --only rest_trap 0 makes it"):
        bucket_questions.keep(Part("transfer", "rest_trap"), small)
    for name in ("rest_trap", "greedy_neighbor"):
        bucket_ppo.play(name, 0, 4000, small.runs)
    first = [
        *(Part("reward", "rest_trap", kind) for kind in ("own", "team")),
        *(Part("partners", "rest_trap", kind) for kind in bucket_questions.MIXES),
        *(Part(question, "rest_trap") for question in ("nash", "evolved", "transfer")),
        Part("deviate", "rest_trap", "3"),
        Part("transfer", "greedy_neighbor"),
    ]
    for part in first:
        bucket_questions.keep(part, small)
    found = bucket_questions.known()
    assert found.keys() == {str(part) for part in first}
    assert len(found["reward:rest_trap:own:0"]["works"]) == 4
    own = found["transfer:rest_trap:0"]
    assert own["as it is"]["rest_trap"] == own["told its own"]["rest_trap"], "its own numbers"
    text = bucket_answers.report(found)
    assert "| rest_trap | 3 free_rider, 1 firefighter | 2984 |" in text
    assert "| learned in | greedy_neighbor | rest_trap | others, as it is |" in text
    assert "| firefighter, free_rider, hero, coordinator |" in text
    assert "not played yet (`--list` names them): 14 of nash, 2 of deviate" in text


def test_a_row_needs_all_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    result = dict.fromkeys((*bucket_questions.MET, *bucket_questions.UNMET), 1.0)
    found = {f"partners:rest_trap:mix:{seed}": result for seed in (0, 1)}
    assert "Nothing complete yet" in bucket_answers.met(found)
    assert "| rest_trap |" in bucket_answers.met({**found, "partners:rest_trap:mix:2": result})


def test_a_scenario_where_a_percent_is_next_to_nothing_does_not_decide_a_row() -> None:
    names = ("default", "hard", "rest_trap", "easy")
    ppo = {name: [{"returns": {"random": 0.0}}] for name in names}
    best = {**dict.fromkeys(names, 100.0), "easy": 1.0}
    earned = {name: {**dict.fromkeys(names, 60.0), name: best[name]} for name in names}
    ways = ("as it is", "told its own")
    found = {f"transfer:{name}:0": dict.fromkeys(ways, earned[name]) for name in names}
    table = bucket_answers.moved(found, ppo).splitlines()
    (row,) = (line for line in table if line.startswith("| hard"))
    assert "6000%" in row
    assert row.endswith("| 60% | 60% |")


def test_one_part_or_all_of_a_question_can_be_asked_for() -> None:
    part = Part("partners", "rest_trap", "mix", 1)
    assert all(
        bucket_questions.asked(part, [name])
        for name in ("partners", "partners:rest_trap", "partners:rest_trap:mix:1")
    )
    assert not bucket_questions.asked(part, ["partners:rest", "nash"])
    everything = list(map(str, bucket_questions.parts()))
    assert len(set(everything)) == len(everything)


def test_kept_results_are_those_of_todays_settings() -> None:
    file = bucket_questions.FILE
    assert len(bucket_questions.known()) == (file.read_text().count("\n") if file.exists() else 0)


def test_an_agent_played_by_four_numbers_works_as_often_as_they_say() -> None:
    experts, game = module("experts"), module("game")
    scenario = module("scenario").scenario("default", {})
    seat = experts.Seat(scenario, 2, Random(0))
    act = bucket_questions.by_four(experts.ARCHETYPES["coordinator"])
    ring = game.Ring((0, 1, 0, 0, 1, 0, 0, 0, 0, 0), (game.Action(0),) * 4, (0,) * 4, (0.0,) * 10)
    acts = [act(seat, ring) for _ in range(4000)]
    assert fmean(one.mode for one in acts) == pytest.approx(0.6 * 0.8, abs=0.03)
    assert {one.house for one in acts if one.mode} == {1, 4}, "where something burns"
    assert fmean(one.signal == one.mode for one in acts) == pytest.approx(0.9, abs=0.03)


def test_a_ruined_house_makes_upstreams_game_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_questions, "GAMES", 40)
    bucket_questions.enlist("rest_trap")
    players = ["firefighter-4"] * 4
    theirs, long, _ = bucket_questions.by_hand("rest_trap", players, True)
    ours, short, works = bucket_questions.by_hand("rest_trap", players, False)
    assert fmean(long) > fmean(short) > 12
    same = [a == b for a, b, n, m in zip(theirs, ours, long, short, strict=True) if n == m]
    assert same
    assert all(same), "the same luck until one of them ends"
    assert works == pytest.approx([0.9] * 4, abs=0.1)


class Always:
    """Works at house 3 if the scenario's numbers are those of rest_trap, and remembers nothing."""

    def act(self, observations: Any, begun: Any) -> Any:
        facts = module("arrays").facts(module("scenario").scenario("rest_trap", {}))
        same = (observations[..., 26:38] == facts).all(-1)
        return np.stack([np.full_like(same, 3, int), same, same], -1).astype(np.int8)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Any) -> None:
        return None


def test_who_is_told_other_numbers_sees_them_and_is_counted_on_fires_only() -> None:
    games = bucket_questions.ground(Part("nash", "hard")).games(64, "test")
    begun = np.ones(64, np.bool_)
    assert not Always().act(games.observations, begun)[..., 1].any()
    tally = Tally(Told(Always(), "rest_trap"))
    assert tally.act(games.observations, begun)[..., 1].all()
    burning = (games.observations[:, 0, :10] == 1).any(1).sum()
    assert len(tally._nights) == burning < 64
    assert tally.works == [1.0] * 4
    tally.act(games.observations, begun)
    assert len(tally._nights) == burning, "the next game at a place is not counted"
