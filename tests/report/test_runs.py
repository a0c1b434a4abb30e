"""Runs are read with what lies in them; what is damaged is named, and labels tell runs apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.errors import ConfigError, StoreError
from orchestry.report.measures import measured
from orchestry.report.runs import Salvaged, read_experiments, run_labels
from orchestry.store.journal import Rated
from orchestry.store.recipes import finished
from orchestry.store.run import Run, Store
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


def test_a_rating_after_its_end_leaves_a_run_finished(folder: Path, searched: Run) -> None:
    with Store(folder) as store:
        at = 1e12
        store.journal.append(Rated(episode=0, node=searched.episodes[0].best, rating=1.0, at=at))
    (experiment,) = read_experiments([folder])
    assert not experiment.missing
    assert finished(experiment.run.events)
    assert experiment.run.took < at / 2


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


@pytest.mark.parametrize(
    ("found", "spoilt"),
    [
        ('"reward":', "NaN"),
        ('"reward":', "1e308"),
        ('"mean_leaf_reward":', "Infinity"),
        ('"value":', "NaN"),
        ('"advantages":[', "-Infinity"),
        ('"weight":', "NaN"),
    ],
)
def test_an_episode_of_numbers_that_are_none_is_damaged(
    folder: Path, found: str, spoilt: str
) -> None:
    path = folder / "episodes.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    changed = re.sub(rf"(?<={re.escape(found)})[\w.-]+", spoilt, first, count=1)
    assert changed != first
    path.write_text("".join([changed, *rest]))
    (experiment,) = read_experiments([folder])
    assert "line 1 is damaged" in experiment.missing[0]
    assert [episode.episode for episode in experiment.run.episodes] == [1, 2]


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


UNTOLD = {"prompt_diff", "seconds", "stopped", "solved", "accepted", "run_dir"}


def test_the_folded_summary_is_the_written_one(folder: Path, searched: Run) -> None:
    (folder / "summary.json").unlink()
    found = Salvaged(folder).summary.model_dump(exclude=UNTOLD)
    assert found == searched.summary.model_dump(exclude=UNTOLD)


def test_a_run_without_its_summary_is_measured_all_the_same(folder: Path, searched: Run) -> None:
    (folder / "summary.json").write_text("{")
    found, whole = measured(Salvaged(folder)), measured(searched)
    assert found is not None
    assert whole is not None
    assert (found.reward, found.best, found.calls) == (whole.reward, whole.best, whole.calls)


def test_a_readable_summary_is_taken_as_it_is(folder: Path, searched: Run) -> None:
    assert Salvaged(folder).summary == searched.summary


BASE: dict[str, Any] = {"task": "tldr", "seed": 0, "learn": {"learning_rate": 1e-4, "every": 4}}


def test_only_what_differs_is_said() -> None:
    fast = {**BASE, "learn": {"learning_rate": 1e-3, "every": 4}}
    assert run_labels([BASE, fast], ["a", "b"]) == [
        "a (learning rate 0.0001)",
        "b (learning rate 0.001)",
    ]
    other = {**BASE, "task": "story"}
    assert run_labels([BASE, other], ["a", "b"]) == ["a (tldr)", "b (story)"]
    assert run_labels([BASE], ["mine"]) == ["mine"]


def test_a_setting_that_tells_no_more_is_left_out() -> None:
    fast = {**BASE, "task": "story", "learn": {"learning_rate": 1e-3, "every": 4}}
    again = {**fast, "seed": 1}
    assert run_labels([BASE, fast, again], ["a", "b", "c"]) == [
        *("a (tldr, seed 0)", "b (story, seed 0)", "c (story, seed 1)")
    ]


def test_the_seed_is_named_before_the_length() -> None:
    longer = {**BASE, "seed": 1, "episodes": 9}
    assert run_labels([{**BASE, "episodes": 3}, longer], ["a", "b"]) == ["a (seed 0)", "b (seed 1)"]


def test_equal_runs_get_their_folders_and_then_numbers() -> None:
    assert run_labels([BASE, BASE], ["a", "b"]) == ["a", "b"]
    assert run_labels([BASE, BASE], ["a", "a"]) == ["a #1", "a #2"]


def test_what_decides_no_result_tells_nothing_apart() -> None:
    dearer = {**BASE, "budget": {"usd": 20.0}}
    assert run_labels([BASE, dearer], ["a", "b"]) == ["a", "b"]


def test_of_a_path_its_name() -> None:
    paths = [{**BASE, "options": {"path": f"/data/{name}"}} for name in ("one", "two")]
    assert run_labels(paths, ["a", "b"]) == ["a (path one)", "b (path two)"]


def test_of_a_section_that_few_know_the_key_is_named_whole() -> None:
    credits = [{**BASE, "credit": {"method": name}} for name in ("siblings", "replay")]
    named = run_labels(credits, ["a", "b"])
    assert named == ["a (credit method siblings)", "b (credit method replay)"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("device", "cuda"), ("micro_tokens", 512), ("gradient_checkpointing", True), ("threads", 2)],
)
def test_where_and_in_what_pieces_it_was_computed_tells_nothing_apart(
    key: str, value: object
) -> None:
    elsewhere = {**BASE, "learn": {**BASE["learn"], key: value}}
    assert run_labels([BASE, elsewhere], ["a", "b"]) == ["a", "b"]
