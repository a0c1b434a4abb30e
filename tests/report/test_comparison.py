"""Two runs beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.report.comparison import Comparison, Figure, compared
from orchestry.report.runs import read_experiments
from orchestry.store.run import Run
from tests.report.made import config, copied


@pytest.fixture(scope="module")
def found(searched: Run, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The shared run, and one with another number of samples that plays one more problem."""
    place = tmp_path_factory.mktemp("other") / "run"
    changed = config(episodes=4, search={"k_samples": 2, "concurrency": 7})
    orchestry.train(changed, place, observer=None)
    return compared(*read_experiments([searched.folder, place]))


def _figure(found: Comparison, name: str) -> Figure:
    return next(one for one in found.figures if one.name == name)


def test_settings_that_change_no_result_are_left_out(found: Comparison) -> None:
    assert found.settings == {"search.k_samples": (4, 2), "episodes": (3, 4)}


def test_differences_are_paired_over_common_problems(found: Comparison, searched: Run) -> None:
    for name in ("reward", "best of k"):
        one = _figure(found, name)
        assert one.problems == len({episode.problem for episode in searched.episodes}) == 3
        assert one.ahead is not None
        assert one.ahead.low <= one.ahead.mean <= one.ahead.high
    best = _figure(found, "best of k")
    assert best.first == pytest.approx(searched.summary.best_of_k)
    assert _figure(found, "reward").first == pytest.approx(searched.summary.mean_reward)


def test_costs_stand_beside_each_other(found: Comparison, searched: Run) -> None:
    calls = _figure(found, "calls")
    assert (calls.first, calls.ahead) == (searched.summary.calls, None)


def test_a_run_less_itself_is_nothing(searched: Run, tmp_path: Path) -> None:
    (one,) = read_experiments([searched.folder])
    found = compared(one, one)
    assert found.settings == {}
    for figure in found.figures:
        assert figure.first == figure.second
        assert figure.ahead is None or (figure.ahead.low, figure.ahead.high) == (0.0, 0.0)


def test_rewards_of_different_tasks_are_not_paired(searched: Run, called: Run) -> None:
    found = compared(*read_experiments([searched.folder, called.folder]))
    assert "task" in found.settings
    assert not [one for one in found.figures if one.ahead]


@pytest.mark.parametrize("changed", [{"options": {"size": 9}}, {"weights": {"length": 2.0}}])
def test_rewards_of_other_games_or_weights_are_not_paired(
    searched: Run, tmp_path: Path, changed: dict[str, object]
) -> None:
    other = copied(searched.folder, tmp_path / "run")
    text = (other / "config.yaml").read_text()
    for key, value in changed.items():
        text = text.replace(f"{key}: {{}}", f"{key}: {value}")
    (other / "config.yaml").write_text(text)
    found = compared(*read_experiments([searched.folder, other]))
    assert [key.partition(".")[0] for key in found.settings] == [*changed]
    assert not [one for one in found.figures if one.ahead]


def test_a_held_out_row_has_one_measure_and_its_updates(searched: Run, tmp_path: Path) -> None:
    """A search's evaluation with samples is measured by all trajectories, on both sides."""
    places = [copied(searched.folder, tmp_path / name) for name in ("a", "b")]
    for place, seed in zip(places, (3, 4), strict=True):
        single = config(seed=seed, search={"strategy": "chains", "k_samples": 2}, split="dev")
        orchestry.train(single, place / "evaluations" / "dev--samples-2", observer=None)
    row = compared(*read_experiments(places)).figures[0]
    assert row.name == "held-out reward, dev, 2 samples each (nothing learned and nothing learned)"
    assert row.ahead is not None
    assert row.second is not None
    assert row.first is not None
    assert row.ahead.mean == pytest.approx(row.second - row.first)


def test_a_resumed_run_that_was_killed_is_summed_up_from_its_journal(
    searched: Run, tmp_path: Path
) -> None:
    place = copied(searched.folder, tmp_path / "run")
    summary = place / "summary.json"
    summary.write_text(summary.read_text().replace('"episodes":3', '"episodes":1'))
    journal = (place / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (place / "journal.jsonl").write_bytes(b"".join(journal[:-1]))
    found = compared(*read_experiments([searched.folder, place]))
    assert (_figure(found, "episodes").first, _figure(found, "episodes").second) == (3, 3)
