"""The run directory: one writer, folds of the journal, and a disk that says no."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest

import orchestry
from orchestry.core.errors import ConfigError, LockedError, StoreError
from orchestry.core.files import write_atomic
from orchestry.engine.run import resume
from orchestry.store.journal import HEAD, Committed
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, Store, load_run
from tests.engine.test_run import config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of six episodes, only read."""
    return orchestry.train(config(), tmp_path_factory.mktemp("runs") / "run")


def test_what_is_committed_is_read_back(finished: Run, tmp_path: Path) -> None:
    with Store(tmp_path / "run") as store:
        for record in finished.episodes[:3]:
            store.commit(record, 0.0)
        store.write("config.yaml", "episodes: 3\n")
    run = load_run(tmp_path / "run")
    assert run.episodes == finished.episodes[:3]
    assert run.config == {"episodes": 3}
    assert run.rewards == [record.mean_leaf_reward for record in run.episodes]
    assert run.best_of_k == [record.reward for record in run.episodes]
    with Store(tmp_path / "run") as again:
        assert list(again.episodes.values()) == run.episodes


def test_files_grown_line_by_line_equal_those_made_anew(finished: Run, tmp_path: Path) -> None:
    names = ("episodes.jsonl", "metrics.jsonl", "rewards.csv")
    with Store(tmp_path) as store:
        for record in finished.episodes:
            store.commit(record, 0.0)
        grown = {name: (tmp_path / name).read_bytes() for name in names}
        store.rewrite()
    assert {name: (tmp_path / name).read_bytes() for name in names} == grown


def test_a_second_writer_is_refused_and_the_lock_is_given_back(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(LockedError, match="another process"), Store(tmp_path):
        pass
    with Store(tmp_path):
        pass


def test_a_line_without_its_commit_is_left_out(finished: Run, tmp_path: Path) -> None:
    first, second = finished.episodes[:2]
    with Store(tmp_path) as store:
        store.commit(first, 0.0)
    with (tmp_path / "episodes.jsonl").open("a") as file:
        file.write(second.model_dump_json() + "\n" + second.model_dump_json()[:40])
    with Store(tmp_path) as store:
        assert list(store.episodes) == [first.episode]
        assert store.lost == set()
    assert read_lines(tmp_path / "episodes.jsonl") == [first]


@pytest.mark.parametrize("torn", ["", '{"episode": 0, "pro', "{", "\n"])
def test_a_first_line_torn_by_a_kill_is_cut_off(finished: Run, tmp_path: Path, torn: str) -> None:
    names = ("episodes.jsonl", "metrics.jsonl", "rewards.csv")
    first, second, third = finished.episodes[:3]
    with Store(tmp_path / "whole") as store:
        for record in (first, second, third):
            store.commit(record, 0.0)
    folder = tmp_path / "killed"
    with Store(folder):
        (folder / "episodes.jsonl").write_text(torn)
    with Store(folder) as store:
        store.commit(first, 0.0)
        store.commit(second, 0.0)
        with (folder / "episodes.jsonl").open("a") as file:
            file.write(third.model_dump_json()[:99])
    with Store(folder) as store:
        assert (list(store.episodes), store.lost) == ([first.episode, second.episode], set())
        store.commit(third, 0.0)
        for name in names:
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_that_stopped_before_its_first_episode_gets_its_header(
    finished: Run, tmp_path: Path
) -> None:
    with Store(tmp_path) as store:
        store.rewrite()
    with Store(tmp_path) as store:
        store.commit(finished.episodes[0], 0.0)
        assert (tmp_path / "rewards.csv").read_text().startswith("episode,total,")


def test_a_commit_without_its_line_is_known_as_lost(finished: Run, tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.write("config.yaml", "{}")
        store.journal.append(Committed(episode=5, at=0.0))
    with Store(tmp_path) as store:
        assert store.lost == {5}
    with pytest.raises(StoreError, match=r"lacks episode 5.*orchestry resume"):
        _ = load_run(tmp_path).episodes


def test_a_line_that_does_not_fit_leaves_no_piece(finished: Run, tmp_path: Path) -> None:
    first, second = finished.episodes[:2]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store(tmp_path) as store:
        store.commit(first, 0.0)
        size = (tmp_path / "episodes.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        try:
            with pytest.raises(StoreError, match=r"episodes.jsonl can't be written.*free space"):
                store.commit(second, 0.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (tmp_path / "episodes.jsonl").stat().st_size == size
        store.commit(second, 0.0)
    assert read_lines(tmp_path / "episodes.jsonl") == [first, second]


def test_an_atomic_write_keeps_the_old_file_where_the_new_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with Store(tmp_path) as store:
        store.write(path.name, "old")
        before = {*tmp_path.iterdir()}
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            with pytest.raises(StoreError, match=r"summary.json can't be written"):
                store.write(path.name, "new" * 10)
            with pytest.raises(OSError, match="File too large"):
                write_atomic(path, b"new" * 10)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {*tmp_path.iterdir()} == before
    assert path.read_text() == "old"


def test_a_run_without_a_summary_says_how_to_end_it(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.write("config.yaml", "{}")
    with pytest.raises(StoreError, match=r"no summary.json.*orchestry resume"):
        _ = load_run(tmp_path).summary
    (tmp_path / "summary.json").write_text('{"run_dir": 3}')
    with pytest.raises(
        StoreError,
        match=r"is damaged \(run_dir: Input.*orchestry resume",
    ):
        _ = load_run(tmp_path).summary


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    for place, what in ((tmp_path, "holds no run"), (tmp_path / "x", "does not exist")):
        with pytest.raises(ConfigError, match=what):
            load_run(place)


def test_episodes_taken_back_stay_so_until_they_are_committed_again(
    finished: Run, tmp_path: Path
) -> None:
    names = ("episodes.jsonl", "metrics.jsonl", "rewards.csv")
    with Store(tmp_path / "kept") as store:
        for record in finished.episodes[:2]:
            store.commit(record, 0.0)
    folder = tmp_path / "run"
    with Store(folder) as store:
        store.write("config.yaml", "{}")
        for record in finished.episodes[:4]:
            store.commit(record, 0.0)
        store.journal.append(Committed(episode=5, at=0.0))  # whose line was lost
    with Store(folder) as store:
        assert store.lost == {5}
        store.roll_back(2, 0.0)
        assert (list(store.episodes), store.lost) == ([0, 1], set())
        for name in names:
            assert (folder / name).read_bytes() == (tmp_path / "kept" / name).read_bytes()
    with Store(folder) as store:
        assert (list(store.episodes), store.lost) == ([0, 1], set())
        store.commit(finished.episodes[2], 0.0)
    with Store(folder) as store:
        assert (list(store.episodes), store.lost) == ([0, 1, 2], set())
    assert load_run(folder).episodes == finished.episodes[:3]


def read_lines(path: Path) -> list[EpisodeRecord]:
    lines = path.read_bytes().splitlines()
    return [EpisodeRecord.model_validate_json(line) for line in lines]


@pytest.mark.parametrize("head", ["kept", "lost"])
@pytest.mark.parametrize("left", [0, 1, 30])
def test_a_journal_emptied_or_shortened_beside_episodes_is_refused(
    finished: Run, tmp_path: Path, left: int, head: str
) -> None:
    """Else the cap would begin anew: what the lost lines cost would be forgotten."""
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(b"".join(lines[:left]))
    if head == "lost":
        (folder / HEAD).unlink()
    with pytest.raises(StoreError, match=r"is empty|was shortened"):
        resume(folder)
    assert (folder / "episodes.jsonl").read_bytes() == (
        finished.folder / "episodes.jsonl"
    ).read_bytes()


def test_a_run_whose_lock_vanishes_stops_before_its_next_line(
    finished: Run, tmp_path: Path
) -> None:
    with Store(tmp_path / "run") as store:
        store.commit(finished.episodes[0], 0.0)
        files = {file: file.read_bytes() for file in (tmp_path / "run").glob("*.jsonl")}
        (tmp_path / "run" / "run.lock").unlink()
        with pytest.raises(StoreError, match=r"run.lock is gone.*stops here"):
            store.commit(finished.episodes[1], 0.0)
        with Store(tmp_path / "run") as other:  # the second writer that the lock kept out
            assert list(other.episodes) == [0]
    assert files == {file: file.read_bytes() for file in files}


# --- links of others ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["journal.head", "journal.jsonl", "config.yaml.new", "summary.json.new", "behaviors", "wandb"],
)
def test_a_link_in_a_strangers_run_writes_nothing_elsewhere(
    finished: Run, tmp_path: Path, name: str
) -> None:
    shutil.copytree(finished.folder, tmp_path / "run")
    mine = tmp_path / "mine"
    mine.write_text("one line of mine that does not end")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(mine)
    for read in (load_run, resume, orchestry.evaluate):
        with pytest.raises(ConfigError, match=rf"{name} is a link, and all of a run"):
            read(tmp_path / "run")
    with pytest.raises(ConfigError, match="is a link"), Store(tmp_path / "run"):
        pass
    assert mine.read_text() == "one line of mine that does not end"


def test_a_pipe_in_a_strangers_run_is_not_waited_for(finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.folder, tmp_path / "run")
    (tmp_path / "run" / "episodes.jsonl").unlink()
    os.mkfifo(tmp_path / "run" / "episodes.jsonl")
    with pytest.raises(ConfigError, match=r"episodes\.jsonl is no plain file"):
        load_run(tmp_path / "run")


def test_a_link_where_a_file_is_prepared_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "config.yaml.new").symlink_to(tmp_path / "mine")
    write_atomic(tmp_path / "config.yaml", b"theirs")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "config.yaml").read_text() == "theirs"
