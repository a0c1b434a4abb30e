"""The benchmark of PPO in all scenarios: played, kept, not played again, and reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality import bucket_ppo

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_a_run_is_kept_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_ppo, "FILE", tmp_path / "kept.jsonl")
    monkeypatch.setattr(bucket_ppo, "GAMES", 20)
    assert bucket_ppo.known(20_000) == {}
    lines = [bucket_ppo.play("sparse_heroics", seed, 20_000, tmp_path) for seed in (0, 1)]
    known = bucket_ppo.known(20_000)
    assert [known["sparse_heroics", seed] for seed in (0, 1)] == lines
    assert bucket_ppo.known(30_000) == {}, "of other settings"
    assert lines[0]["returns"].keys() >= {"learned", "likeliest", "guard", "sparse_hero"}
    text = bucket_ppo.report(known, 20_000)
    assert "sparse_heroics" in text
    assert "PPO, likeliest" in text
    assert "Not played yet: default, easy" in text
    assert " ± " in text
    assert "Seeds: 2 to 2" in text


def test_the_kept_results_are_those_of_todays_settings() -> None:
    kept = bucket_ppo.FILE.read_text().count("\n") if bucket_ppo.FILE.exists() else 0
    assert len(bucket_ppo.known(10_000_000)) == kept
