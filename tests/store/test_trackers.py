"""Mirrors of a run, read back with TensorBoard's reader and from W&B's offline file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import TrackersConfig, resolve
from orchestry.core.errors import ConfigError
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import prepare, resume
from orchestry.engine.session import Silent
from orchestry.store import trackers
from orchestry.store.journal import Evaluated, Learned
from orchestry.store.progress import MEAN, PACE
from orchestry.store.records import Metrics
from orchestry.store.run import Run
from orchestry.store.trackers import Rows, Tracker, TrackerRow, check_trackers
from tests.engine.test_run import BASE, PRICED, config, kill_at

Curves = dict[str, list[tuple[int, float]]]
BOARD = "trackers.tensorboard=true"


class Notes(Silent):
    """An observer that keeps what the user is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def board(folder: Path) -> Any:
    """The event files of a run, as TensorBoard reads them."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()


def curves(folder: Path) -> Curves:
    read = board(folder)
    tags = read.Tags()["scalars"]
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in tags}


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_shows(found: Curves, folder: Path) -> None:
    """Each figure of metrics.jsonl stands at its episode, once."""
    rows = metrics(folder)
    for key in {key for row in rows for key in row if key != "episode" and key[:4] != "tag/"}:
        expected = [(int(row["episode"]), row[key]) for row in rows if key in row]
        assert [step for step, _ in found[key]] == [step for step, _ in expected], key
        assert [x for _, x in found[key]] == pytest.approx([x for _, x in expected]), key


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of six episodes with its event file, only read."""
    pytest.importorskip("tensorboard")
    return orchestry.train(config(BOARD, *PRICED), tmp_path_factory.mktemp("runs") / "run")


def test_tensorboard_shows_each_episode_and_the_config(shown: Run) -> None:
    assert_shows(curves(shown.folder), shown.folder)
    assert curves(shown.folder)["total_usd"][-1][1] > 0
    from tensorboard.plugins.hparams import metadata

    data = board(shown.folder).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(data).hparams
    assert hparams["search.k_samples"].number_value == shown.config["search"]["k_samples"]
    assert hparams["provider.name"].string_value == "fake"
    assert hparams["trackers.tensorboard"].bool_value is True


def test_a_tag_is_shown_as_a_rate_also_where_it_falls_to_none(shown: Run) -> None:
    plain = shown.episodes[0]
    score = plain.best_node.score.model_copy(update={"tags": ("cooperation",)})
    leaf = plain.best_node.model_copy(update={"score": score})
    nodes = tuple(leaf if node.id == leaf.id else node for node in plain.nodes)
    rows = Rows(None)
    first, second = plain.model_copy(update={"nodes": nodes}), shown.episodes[1]
    found = [row for record in (first, second) for row in rows.episode(record, 0.0)]
    assert [row.figures["rate/cooperation"] for row in found] == [
        1 / len(list(first.leaves())),
        second.tags()["cooperation"],
    ]


def test_rows_come_in_order_whatever_arrives_first(shown: Run) -> None:
    state = {"loss": 0.5, "norms": {"aux": 2.0}, "checkpoint": "a/b", "shared": True, "none": None}
    update = Learned(update=1, state=state, at=7.0)
    dev = {n: Evaluated(update=n, reward=n / 4, tags={"rich": 0.5}, at=8.0 + n) for n in (0, 1)}
    rows = Rows(3)
    found = [*rows.evaluation(dev[1]), *rows.update(update), *rows.evaluation(dev[0])]
    for number in (1, 0, 3, 5, 2, 4):
        found += rows.episode(shown.episodes[number], 1.0)
    assert [row.episode for row in found] == [0, 0, 1, 2, 2, 2, 3, 4, 5]
    assert found[0].figures == {"dev/reward": 0.0, "dev/rate/rich": 0.5}
    assert found[4].figures == {"learn/loss": 0.5, "learn/norms/aux": 2.0}
    assert found[5].figures == {"dev/reward": 0.25, "dev/rate/rich": 0.5}
    assert [row.at for row in (found[0], *found[4:6])] == [8.0, 7.0, 9.0]


def test_text_backends_have_the_names_of_backend_ppo(shown: Run) -> None:
    found, rows = curves(shown.folder), metrics(shown.folder)
    alike = ("episode/reward", "train/total_episodes", PACE)
    assert all([step for step, _ in found[name]] == [*range(6)] for name in alike)
    assert found["episode/reward"] == found["reward"]
    assert found["train/total_episodes"][-1] == (5, 6.0)
    assert all(speed > 0 for _, speed in found[PACE])
    assert [row["episode/length"] for row in rows] == [3.0] * 6, "three agents, one after the other"


def test_the_rolling_mean_forgets_what_is_older_than_100_episodes(shown: Run) -> None:
    figures, record = Metrics(), shown.episodes[0]
    rewards = [0.0] * 50 + [1.0] * 90
    rows = [figures.row(record.model_copy(update={"mean_leaf_reward": each})) for each in rewards]
    assert [rows[n][MEAN] for n in (0, 49, 99, 139)] == [0.0, 0.0, 0.5, 0.9]
    assert rows[139]["mean_reward"] == pytest.approx(90 / 140)


def test_speed_is_of_the_time_in_which_the_run_was_played(shown: Run) -> None:
    steps = [record.steps() for record in shown.episodes]
    assert steps == [20] * 6
    # two processes, a day between them; two episodes end in the same moment
    begun, ends = [100.0, 90_000.0], [110.0, 110.0, 120.0, 90_010.0, 90_030.0, 90_030.0]
    rows = Rows(None, begun)
    found = [
        row.figures.get(PACE)
        for record, at in zip(shown.episodes, ends, strict=True)
        for row in rows.episode(record, at)
    ]
    assert found == [20 / 10, 40 / 10, 60 / 20, 80 / 30, 100 / 50, 120 / 50]


def test_how_busy_a_gpu_is_has_one_name_in_all_backends(shown: Run) -> None:
    state = {"loss": 0.5, "gpu": {"use": 83.0, "memory_gb": 3.5}}
    rows = Rows(1)
    found = [*rows.update(Learned(update=1, state=state, at=7.0))]
    found += rows.episode(shown.episodes[0], 1.0)
    assert found[-1].figures == {"learn/loss": 0.5, "gpu/use": 83.0, "gpu/memory_gb": 3.5}


def test_an_episode_that_failed_takes_its_turn_and_no_row(shown: Run) -> None:
    rows, found = Rows(None), list[TrackerRow]()
    for number in (1, 0, 2):
        why = "no luck" if number == 0 else ""
        found += rows.episode(shown.episodes[number].model_copy(update={"failed": why}), 1.0)
    assert [row.episode for row in found] == [1, 2]


def test_a_resume_goes_on_in_one_file_with_the_times_of_the_first_process(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = orchestry.train(config(BOARD, "episodes=3"), tmp_path / "run")
    before = board(run.folder).Scalars("reward")
    resume(run.folder, {"episodes": 6})
    assert len(list((run.folder / "tensorboard").iterdir())) == 1
    after = board(run.folder).Scalars("reward")
    assert [event.step for event in after] == list(range(6))
    for first, again in zip(before, after, strict=False):
        assert (again.value, again.wall_time) == (first.value, pytest.approx(first.wall_time))


def test_a_mirror_may_be_asked_for_later_and_an_evaluation_has_none(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = orchestry.train(config(), tmp_path / "run")
    assert not (run.folder / "tensorboard").exists()
    resume(run.folder, {"trackers": {"tensorboard": True}})
    assert_shows(curves(run.folder), run.folder)
    assert not (evaluate(run.folder, "dev").folder / "tensorboard").exists()


@pytest.mark.slow
def test_a_killed_run_leaves_a_readable_file_and_a_resume_doubles_no_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    sets = (*BASE, BOARD, "provider.fake.latency_s=0.1", "search.episodes_in_flight=1")
    words = [word for item in sets for word in ("--set", item)]
    folder = tmp_path / "run"
    kill_at(b'"committed","episode":2', folder, "run", "--run-dir", str(folder), *words)
    found = [step for step, _ in curves(folder).get("reward", [])]
    assert found == list(range(len(found)))
    resume(folder)
    assert_shows(curves(folder), folder)


def test_a_mirror_that_fails_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    notes = Notes()
    run = orchestry.train(config(BOARD), tmp_path / "run", notes)
    assert run.summary.stopped == "done"
    assert len([text for text in notes.said if text.startswith("TensorBoard failed")]) == 1


def test_a_mirror_that_hangs_is_given_up(shown: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager
    from threading import Event

    free, notes = Event(), Notes()

    @contextmanager
    def stuck() -> Iterator[trackers.Write]:
        free.wait()
        yield lambda row: None

    monkeypatch.setattr(trackers, "WAIT_S", 0.05)
    tracker = Tracker("W&B", stuck, None, notes.note)
    tracker.committed(shown.episodes[0], 0.0)
    tracker.close()
    free.set()
    assert len(notes.said) == 1
    assert "W&B has not taken everything" in notes.said[0]


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    def found(name: str) -> None:
        return None

    monkeypatch.setattr(trackers, "find_spec", found)
    value = "true" if package == "tensorboard" else "offline"
    with pytest.raises(ConfigError, match=rf"orchestry-marl\[{package}\]"):
        orchestry.train(config(f"trackers.{package}={value}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    check_trackers(TrackersConfig())


def test_yaml_s_off_is_off() -> None:
    assert resolve([], ["trackers.wandb=off"]).trackers.wandb == "off"
    assert resolve([], ["trackers.wandb=offline"]).trackers.wandb == "offline"
    with pytest.raises(ConfigError, match=r"trackers\.wandb"):
        resolve([], ["trackers.wandb=true"])


def test_the_key_of_wandb_is_no_config() -> None:
    secret = "0123456789abcdef" * 2
    with pytest.raises(ConfigError, match="WANDB_API_KEY"):
        prepare(config(f"trackers.name='{secret}'"), environ={"WANDB_API_KEY": secret})
