"""W&B offline, in processes of their own: its service, its files, its login."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestry.store.trackers import run_id
from tests.engine.test_run import BASE, PRICED, artefacts, kill_at
from tests.store.test_trackers import metrics

wandb = pytest.importorskip("wandb")
OFFLINE = (*BASE, *PRICED, "trackers.wandb=offline", "trackers.tags=[a, b]", "trackers.name=mine")
BLOCK, HEADER = 32768, 7


def words(sets: tuple[str, ...]) -> list[str]:
    return [word for item in sets for word in ("--set", item)]


def command(home: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`orchestry`, without this machine's W&B login."""
    environ = {key: text for key, text in os.environ.items() if not key.startswith("WANDB_")}
    environ |= {"HOME": str(home), **more}
    return subprocess.run(
        [sys.executable, "-m", "orchestry", *args],
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def records(folder: Path) -> Iterator[Any]:
    """The protocol buffers of the one .wandb file: LevelDB's log format after 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    data, at, whole = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # full, last
            yield Record.FromString(whole)
            whole = b""


def history(folder: Path) -> list[dict[str, float]]:
    found = [record.history for record in records(folder) if record.HasField("history")]
    rows = [
        {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in one.item}
        for one in found
    ]
    return [row for row in rows if row]


def assert_shows(folder: Path) -> None:
    """Each figure of metrics.jsonl stands in the row of its episode, once."""
    rows, expected = history(folder), metrics(folder)
    assert [row["episode"] for row in rows] == [row["episode"] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        figures = {key: x for key, x in other.items() if not key.startswith("tag/")}
        assert {key: row[key] for key in figures} == figures


def alive(folder: Path) -> list[str]:
    """Processes whose command line or open files lie in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        found += [str(process) for name in files if name.startswith(str(folder))]
    return found


@pytest.mark.slow
def test_a_run_and_its_resume_leave_one_whole_offline_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = command(tmp_path, "run", "--run-dir", str(folder), *words(OFFLINE))
    assert done.returncode == 0, done.stderr
    assert "wandb:" not in done.stdout + done.stderr
    assert_shows(folder)
    id = run_id(folder)
    done = command(tmp_path, "resume", str(folder), "--episodes", "8")
    assert done.returncode == 0, done.stderr
    assert_shows(folder)
    run = next(record.run for record in records(folder) if record.HasField("run"))
    assert (run.run_id, run.display_name, run.project) == (id, "mine", "orchestry")
    assert sorted(run.tags) == ["a", "b"]
    kept = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert kept["search"]["k_samples"] == 4
    assert run.git.remote_url == ""
    assert list(folder.glob("wandb/offline-run-*/files/*")) == []  # no code, packages, metadata
    assert alive(folder) == []


@pytest.mark.slow
def test_a_killed_run_is_shown_whole_after_its_resume(tmp_path: Path) -> None:
    folder, slow = tmp_path / "run", ("provider.fake.latency_s=0.1", "search.episodes_in_flight=1")
    kill_at(
        b'"committed","episode":2', folder, "run", "--run-dir", str(folder), *words(OFFLINE + slow)
    )
    assert command(tmp_path, "resume", str(folder)).returncode == 0
    assert_shows(folder)


@pytest.mark.slow
def test_online_without_a_login_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    online = words((*BASE, "trackers.wandb=online"))
    done = command(tmp_path, "run", "--run-dir", str(tmp_path / "run"), *online)
    assert done.returncode == 2
    assert "finds no login" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_a_network_the_run_ends_as_it_would(tmp_path: Path) -> None:
    with socket.socket() as unheard:  # bound, never listening: every connection is refused
        unheard.bind(("127.0.0.1", 0))
        server = {"WANDB_BASE_URL": f"http://127.0.0.1:{unheard.getsockname()[1]}"}
        sets = words((*BASE, "trackers.wandb=online"))
        args = ("run", "--run-dir", str(tmp_path / "run"), *sets)
        done = command(tmp_path, *args, WANDB_API_KEY="0" * 40, **server)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("shows no more of this run") == 1
    plain = command(tmp_path, "run", "--run-dir", str(tmp_path / "plain"), *words(BASE))
    assert plain.returncode == 0
    found, expected = artefacts(tmp_path / "run"), artefacts(tmp_path / "plain")
    assert found.pop("config.yaml") != expected.pop("config.yaml")
    assert found == expected
