"""The benchmark of local learning: its runs, what it reports of them, and its plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.quality.local_learning import LEARN, SETTINGS, Bench, Setting
from benchmarks.quality.local_learning_plot import draw
from benchmarks.quality.local_learning_report import (
    ARMS,
    VISITS,
    Results,
    by_problem,
    earned,
    report,
)
from benchmarks.stats import mean
from orchestry.core.config import validate

SETTING = Setting("code_collaboration", 2, {"max_tokens": 8}, {"every": 2}, grade=1)


def test_the_settings_are_valid_and_visit_each_problem_as_often(tmp_path: Path) -> None:
    for setting in SETTINGS:
        bench = Bench(tmp_path)
        config = validate(bench.config(setting, "learning", 0))
        control = validate(bench.config(setting, "control", 0))
        assert config.learn.learning_rate > control.learn.learning_rate == 0
        assert config.episodes == VISITS * setting.problems
        assert config.episodes % config.learn.every == 0, "no episode is left without an update"
        lines = bench.bank(setting).read_text().splitlines()
        assert len(lines) == setting.problems + len(setting.of("test"))


def test_an_arm_has_a_place_for_each_of_its_configs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    places = [bench.place(SETTING, arm, seed) for arm in ARMS for seed in (0, 1)]
    other = replace(SETTING, sampling={"max_tokens": 9})
    assert len({*places, bench.place(other, "learning", 0)}) == 5


@pytest.mark.slow
def test_runs_are_played_once_and_reported(model: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, model, {**LEARN, "dtype": "float32"})
    arms = {arm: [bench.play(SETTING, arm, seed) for seed in (0, 1)] for arm in ARMS}
    one, control = arms["learning"][0], arms["control"][0]
    begun = [[e.nodes for e in played.run.episodes[:2]] for played in (one, control)]
    assert begun[0] == begun[1], "until the first update both draw the same"
    assert len(one.rewards) == VISITS
    assert {e.problem for e in one.first} == {e.problem for e in one.last}
    assert len(by_problem([one.first, control.first])) == SETTING.problems

    body = report(Results({"code_collaboration": arms}, (0, 1), 2))
    assert f"{mean(earned(arms['control']).test):.3f} before" in body
    assert "| reward: cooperation |" in body

    (one.run.folder / "summary.json").unlink()  # as a kill at the very end leaves it
    again = bench.play(SETTING, "learning", 0)
    assert again.run.episodes == one.run.episodes
    assert again.wall_s > one.wall_s
    done = bench.play(SETTING, "learning", 0)
    assert done.wall_s == again.wall_s, "what is done is not played again"


def test_the_plot_has_a_panel_a_task_and_is_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = {
        task: {"learning": [[0.1, 0.5], [0.2, 0.6]], "control": [[0.1, 0.1], [0.2, 0.1]]}
        for task in ("tldr", "code_collaboration")
    }
    for name in ("one.svg", "two.svg"):
        draw(curves, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    for words in ("tldr", "code_collaboration", "learning", "control", "update"):
        assert words in text
    assert text == (tmp_path / "two.svg").read_text()
    assert len(text) < 150_000
