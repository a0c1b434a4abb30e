"""Runs as rows: finished, going, cut off and damaged ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestry.core.errors import ConfigError, StoreError
from orchestry.report.listing import Row, chosen, rows_in
from orchestry.store.journal import Opened, encode
from orchestry.store.run import Run, Store, is_written, load_run
from tests.report.made import copied


@pytest.fixture
def place(searched: Run, tmp_path: Path) -> Path:
    """A folder with a run that ended, one whose process was killed, and other things."""
    copied(searched.folder, tmp_path / "ended")
    cut = copied(searched.folder, tmp_path / "cut")
    journal = (cut / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "journal.jsonl").write_bytes(b"".join(journal[:-1]))
    (cut / "journal.head").unlink()
    (cut / "summary.json").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("not a run")
    return tmp_path


def test_a_row_says_what_the_summary_says(searched: Run) -> None:
    (row,) = rows_in([searched.folder])
    found = searched.summary
    assert (row.state, row.task, row.backend) == ("done", found.task, found.backend)
    assert (row.episodes, row.asked, row.reward) == (3, 3, found.mean_reward)
    assert row.best_of_k == found.best_of_k
    assert (row.best, row.usd) == (found.best_reward, found.cost_usd)
    assert row.begun.endswith("+00:00")


def test_a_run_without_an_end_is_summed_up_from_its_journal(place: Path) -> None:
    rows = {Path(row.run).name: row for row in rows_in([place])}
    assert rows.keys() == {"ended", "cut"}
    assert rows["cut"].state == "cut off"
    assert rows["cut"].reward == pytest.approx(rows["ended"].reward)
    assert rows["cut"].usd == rows["ended"].usd


def test_a_run_that_is_being_written_is_running(place: Path) -> None:
    assert not is_written(place / "cut")
    with Store(place / "cut"):
        (row,) = rows_in([place / "cut"])
        assert row.state == "running"
        with Store(place / "ended"):  # to look at one keeps nobody from another
            assert is_written(place / "ended")
    assert not is_written(place / "cut")


def test_a_resumed_runs_old_summary_does_not_count(place: Path) -> None:
    journal = place / "ended" / "journal.jsonl"
    whole = journal.read_bytes()
    opened = Opened(at=1e9, provider="fake", model="fake-1")
    journal.write_bytes(whole + encode(opened, int(whole[-11:-3], 16)))
    summary = place / "ended" / "summary.json"
    summary.write_text(summary.read_text().replace('"episodes":3', '"episodes":2'))
    (row,) = rows_in([place / "ended"])
    assert (row.state, row.episodes) == ("cut off", 3)


def test_a_damaged_run_is_a_row_too(place: Path) -> None:
    (place / "cut" / "journal.jsonl").write_bytes(b"nonsense\n")
    rows = {Path(row.run).name: row for row in rows_in([place])}
    assert rows["cut"].state == "damaged"
    assert "journal.jsonl" in rows["cut"].error
    assert rows["ended"].state == "done"


def test_rows_are_filtered_and_sorted() -> None:
    rows = [
        Row(run="runs/a", state="done", task="tldr", reward=0.2, begun="2026-01-01"),
        Row(run="runs/b", state="running", task="code_review", begun="2026-01-03"),
        Row(run="runs/c", state="done", task="code_x", reward=0.9, begun="2026-01-02"),
    ]
    names = [row.run[-1] for row in chosen(rows, [], "begun")]
    assert names == ["b", "c", "a"]
    assert [row.run[-1] for row in chosen(rows, ["task=code_*"], "reward")] == ["c", "b"]
    assert [row.run[-1] for row in chosen(rows, ["state=done", "run=a"], "run")] == ["a"]


@pytest.mark.parametrize(
    ("wanted", "by", "said"),
    [
        (["tsak=x"], "begun", "'task'"),
        (["task"], "begun", "key=pattern"),
        ([], "rewrd", "'reward'"),
    ],
)
def test_a_wrong_key_is_named(wanted: list[str], by: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chosen([], wanted, by)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is no folder"):
        rows_in([tmp_path / "nowhere"])
    shutil.rmtree(tmp_path)


def test_a_judge_check_is_no_run(place: Path) -> None:
    shutil.copytree(place / "ended", place / "judge-check--x")
    (place / "judge-check--x" / "config.yaml").rename(place / "judge-check--x" / "check.yaml")
    assert {Path(row.run).name for row in rows_in([place])} == {"ended", "cut"}


FILES = ("summary.json", "episodes.jsonl", "manifest.json", "config.yaml", "checkpoints/x.json")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_runs_folder_is_named_and_not_waited_for(place: Path, name: str) -> None:
    file = place / "ended" / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    (row,) = (row for row in rows_in([place]) if row.run.endswith("ended"))
    assert row.state == "damaged"
    assert str(file) in row.error
    with pytest.raises((StoreError, ConfigError)):
        load_run(place / "ended")
