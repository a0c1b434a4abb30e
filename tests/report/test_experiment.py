"""Runs are read with what lies in them; what is unfinished or damaged is named, not fatal."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.core.errors import ConfigError, StoreError
from orchestry.report.experiment import read_experiments
from orchestry.store.run import Run
from tests.report.made import copied


def test_evaluations_and_baselines_are_read_by_their_folders(folder: Path, searched: Run) -> None:
    copied(searched.folder, folder / "evaluations" / "test")
    copied(searched.folder, folder / "baselines" / "best_of_n--test--samples-2")
    (experiment,) = read_experiments([folder])
    assert experiment.label == "run"
    assert experiment.run.episodes == searched.episodes
    assert set(experiment.evaluations) == {"test"}
    assert experiment.baselines["best_of_n--test--samples-2"].rewards == searched.rewards
    assert experiment.missing == ()


def test_an_evaluation_that_is_no_run_is_named(folder: Path) -> None:
    (folder / "evaluations" / "test").mkdir(parents=True)
    (experiment,) = read_experiments([folder])
    assert experiment.evaluations == {}
    (sentence,) = experiment.missing
    assert sentence.startswith("evaluations/test is left out: ")
    assert "holds no run" in sentence


@pytest.mark.parametrize("name", ["evaluations/mine", "evaluations/fixed--test", "baselines/test"])
def test_a_measurement_under_another_name_is_named(folder: Path, searched: Run, name: str) -> None:
    copied(searched.folder, folder / name)
    (experiment,) = read_experiments([folder])
    assert not experiment.evaluations
    assert not experiment.baselines
    assert experiment.missing[0].startswith(f"{name} is left out: its name is not of the form")


def test_a_run_cut_off_says_how_far_it_came(folder: Path) -> None:
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = next(n for n, line in reversed([*enumerate(lines)]) if b'"committed"' in line)
    path.write_bytes(b"".join(lines[:last]) + b'{"kind":"ans')
    (folder / "summary.json").unlink()
    (experiment,) = read_experiments([folder])
    assert [episode.episode for episode in experiment.run.episodes] == [0, 1]
    assert experiment.missing[0] == "2 of 3 episodes are finished"
    assert "has not ended in order" in experiment.missing[1]
    assert "summary.json" in experiment.missing[2]


@pytest.mark.parametrize("name", ["journal.jsonl", "episodes.jsonl"])
def test_a_damaged_line_is_left_out_and_named(folder: Path, name: str) -> None:
    path = folder / name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b'{"spoilt":1}\n', *lines[2:]]))
    with pytest.raises(StoreError):
        _ = orchestry.load_run(folder).episodes
    (experiment,) = read_experiments([folder])
    assert "line 2 is damaged" in experiment.missing[0]
    left = 3 if name == "journal.jsonl" else 2
    assert len(experiment.run.episodes) == left


def test_a_journal_of_which_nothing_can_be_read_is_an_error(folder: Path) -> None:
    (folder / "journal.jsonl").write_text('{"kind":"opened","version":9}\n')
    with pytest.raises(StoreError, match="is of version 9"):
        read_experiments([folder])


def test_what_is_no_run_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_experiments([folder, tmp_path / "none"])
    with pytest.raises(ConfigError, match="is given twice"):
        read_experiments([folder, tmp_path / "." / "run"])
    with pytest.raises(ConfigError, match="no run is given"):
        read_experiments([])
