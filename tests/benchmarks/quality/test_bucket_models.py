"""The benchmark of language models in Bucket Brigade: its examples, and its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality import bucket_models, bucket_ppo
from orchestry.store.journal import Learned
from orchestry.store.run import load_run
from tests.tasks.local_runs import roomy_model


def test_examples_are_turns_of_the_teachers_game() -> None:
    found = bucket_models.examples("default")
    assert [*found] == [f"agent_{number}" for number in range(4)]
    for number, own in enumerate(found.values()):
        assert len(own["examples"]) == bucket_models.EXAMPLES
        answers = [one["answered"] for one in own["examples"]]
        assert any("work" in text for text in answers)
        assert any("rest" in text for text in answers)
        assert all(f"You are agent_{number}." in one["asked"] for one in own["examples"])


def test_the_report_has_what_was_earned(monkeypatch: pytest.MonkeyPatch) -> None:
    earned = {"random": 1.0, "always_rest": 2.0, "guard": 3.0, "learned": 4.0}
    known: Any = lambda steps: {("default", 0): {"returns": earned}}  # noqa: E731
    monkeypatch.setattr(bucket_ppo, "known", known)
    line = {"scenario": "default", "way": "plain", "returns": [10.0, 30.0], "answers": 4}
    line["at"] = "2026-11-26T00:34+00:00"
    text = bucket_models.report({("default", "plain"): {**line, "read": 1, "behaviors": 0}})
    assert "20 [10, 30]" in text
    assert "25%" in text
    assert "Played 2026-11-26; date" in text
    assert "PPO" in text


@pytest.mark.slow
def test_adapters_learn_in_short_games_and_play_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("MODEL", str(roomy_model(tmp_path))),
        ("FILE", tmp_path / "kept.jsonl"),
        ("TRAIN", 2),
        ("GAMES", 1),
        ("EXAMPLES", 1),
    ):
        monkeypatch.setattr(bucket_models, name, value)
    line = bucket_models.play("default", "magrpo", tmp_path)
    assert len(line["returns"]) == 1
    assert line["answers"] >= 4 * 12, "four agents, twelve nights at least"
    assert bucket_models.known() == {("default", "magrpo"): line}, "kept once"
    assert len(bucket_models.play("default", "weights", tmp_path)["returns"]) == 1
    run = load_run(tmp_path / "default-magrpo")
    assert run.config["options"]["max_nights"] == 4
    assert any(isinstance(event, Learned) for event in run.events)


@pytest.mark.slow
def test_a_policy_teaches_a_team_that_then_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("MODEL", str(roomy_model(tmp_path))),
        ("FILE", tmp_path / "kept.jsonl"),
        ("PPO_STEPS", 1000),
        ("LESSONS", 1),
        ("EPOCHS", 1),
        ("PRACTICE", 2),
        ("GAMES", 1),
    ):
        monkeypatch.setattr(bucket_models, name, value)
    for way in ("taught", "practised"):
        line = bucket_models.play("default", way, tmp_path)
        assert len(line["returns"]) == 1
        assert line["answers"] >= 4 * 12, "the usual rules"
    run = load_run(tmp_path / "default-practised")
    assert run.config["learn"]["from"] == str(
        tmp_path / "default-taught" / "checkpoints" / "000001"
    )
    assert run.config["options"]["rules"]["prob_house_catches_fire"] == 0.2
