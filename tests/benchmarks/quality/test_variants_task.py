"""The benchmark of variants on a real task: its figures, and all of it on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.quality import variants_task
from benchmarks.quality.variants_task import VARIANTS, Tuning, curve, drawn, report, updates_to
from orchestry.core.config import validate


def test_the_threshold_is_reached_between_two_evaluations() -> None:
    rewards = {0: 0.5, 3: 0.6, 6: 0.8, 9: 0.7}
    assert updates_to(0.7, rewards) == pytest.approx(4.5)
    assert updates_to(0.5, rewards) == 0
    assert updates_to(0.9, rewards) is None


def test_every_variant_is_a_config(tmp_path: Path) -> None:
    tuning = Tuning(tmp_path)
    configs = {name: validate(tuning.config(name, 1)) for name in VARIANTS}
    assert configs["critic"].learn.baseline == "critic"
    assert configs["auto"].learn.group_size is None, "chosen by what was seen"
    assert configs["success"].curriculum == "success"
    plain = configs["plain"].model_dump()
    assert all(one.model_dump() != plain for name, one in configs.items() if name != "plain")


@pytest.mark.slow
def test_variants_are_played_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(variants_task, "DEV", 2)
    tuning = Tuning(tmp_path, model, updates=2)
    runs = {name: [tuning.play(name, 0)] for name in ("plain", "replay")}
    assert curve(runs["plain"][0]).keys() == {0, 2}
    assert {drawn(run) for found in runs.values() for run in found} == {2 * 5 * 4 * 2}
    assert tuning.play("plain", 0).folder == runs["plain"][0].folder, "not played again"
    body = report(runs)
    assert "| plain |" in body
    assert "| replay |" in body
