"""`orchestry remote`, against a real ssh server on loopback."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import yaml

import orchestry
from orchestry.core import probe
from orchestry.core.config import resolve, validate
from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.resolve import merge, read_config_file
from orchestry.ext.remote import host as there
from orchestry.ext.remote import runs as remote_runs
from orchestry.ext.remote.cli import _show
from orchestry.ext.remote.remote import Host, HostConfig, Shell, connect, set_up, shell
from orchestry.ext.remote.runs import pull, stage
from orchestry.ext.remote.wheel import pack
from orchestry.store.journal import Journal, Learned
from orchestry.task.registry import bundled, load_task
from tests.cli.sshd import Server, borrow, children, equip, needs_ssh, serving, write_remote
from tests.cli.support import FAKE, TASKS, CommandLine
from tools.keys import explanations

NAME = "a b;$(touch gone) 'c'"
"""A run's name that a shell would take apart."""
KEY = "sk-ant-not-a-key-0123456789"
_SMALL = ("games=16", "horizon=8", "minibatch=128", "checkpoint_every=600", "steps=300000")
PPO = ("--backend", "ppo", "--task", "bucket_brigade", *(f"--set=ppo.{one}" for one in _SMALL))
SLOW = ("--episodes", 12, "--set", "provider.fake.latency_s=0.5", "--set", "search.concurrency=4")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The ssh server of this file's tests."""
    with serving(tmp_path_factory.mktemp("sshd")) as found:
        yield found


@pytest.fixture
def box(cli: CommandLine, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a host `gpu` that has been set up, with blanks in its path."""
    monkeypatch.setattr("orchestry.ext.remote.cli.WAIT_S", 0.3)
    folder = tmp_path / "a 'rented' box" / "orchestry"
    equip(folder)
    write_remote(gpu=server.entry(folder=str(folder), usd_per_hour=2.5, remind_after_hours=1))
    return folder


def sessions(box: Path, name: str) -> list[dict[str, Any]]:
    path = box / "runs" / name / "remote" / "sessions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def until(what: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- setup ----------------------------------------------------------------------------------------


@needs_ssh
@pytest.mark.slow
def test_setup_goes_on_where_it_broke_off(cli: CommandLine, server: Server, tmp_path: Path) -> None:
    """The index of that machine's pip is out of reach at first."""
    box = tmp_path / "a box"
    write_remote(gpu=server.entry(folder=str(box)))
    setup = ("remote", "setup", "gpu", "--python", sys.executable, "--extra", "tensorboard")
    first = cli(*setup)
    assert first.code == 1, first
    assert "No matching distribution found" in first.last
    assert "gpu: its setup" not in first.err
    cut_off = cli("remote", "monitor", "gpu")
    cut_off.failed(2, "setup.json", "orchestry remote setup gpu")
    borrow(box)
    second = cli(*setup)
    assert second.code == 0, second
    assert "Successfully installed orchestry-marl" in second.out
    assert "sandbox" in second.out  # of the doctor there
    assert "gpu is ready" in second.out
    again = cli(*setup)
    assert (again.code, "Successfully installed" in again.out) == (0, False), again
    cli(*setup, "--system-site-packages").failed(1, "remove its folder venv first")
    cli(*setup[:3], "--python", "/no/python").failed(1, "remove its folder venv first")
    assert json.loads((box / "setup.json").read_text())["extras"] == ["tensorboard"]
    (site,) = (box / "venv" / "lib").glob("python*/site-packages")
    assert (site / "orchestry/ext/remote/host.py").read_bytes() == Path(there.__file__).read_bytes()
    assert (site / "orchestry/_bundled/tasks/code_review/task.py").is_file()
    assert not list(box.glob("*.whl"))


@needs_ssh
def test_setup_says_what_that_machine_lacks(
    cli: CommandLine, server: Server, tmp_path: Path
) -> None:
    write_remote(gpu=server.entry(folder=str(tmp_path / "box")))
    cli("remote", "setup", "gpu", "--extra", "nope").failed(2, "unknown extra 'nope'", "Known: ")
    found = cli("remote", "setup", "gpu", "--python", "/no/python")
    assert found.code == 1
    assert "no Python 3.11 or newer there among /no/python" in found.last
    cli("remote", "monitor", "gpu").failed(2, "orchestry remote setup gpu")


def test_the_wheel_is_whole_and_the_same_each_time() -> None:
    name, data = pack()
    assert pack() == (name, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files["orchestry/ext/remote/host.py"] == Path(there.__file__).read_bytes()
    assert not [name for name in files if "__pycache__" in name]
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(files[record].decode().splitlines())}
    assert rows.keys() == files.keys()
    for name, digest in rows.items():
        if name != record:
            raw = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest())
            assert digest == f"sha256={raw.decode().rstrip('=')}", name


def test_the_wheel_has_no_hidden_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .env beside a task has keys."""
    for name in (".env", "task.py", ".git/config"):
        (tmp_path / "tasks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tasks" / name).write_text("KEY=1\n")
    monkeypatch.setattr("orchestry.ext.remote.wheel.bundled", lambda kind: tmp_path / kind)
    with zipfile.ZipFile(io.BytesIO(pack()[1])) as archive:
        bundled = [name for name in archive.namelist() if "/_bundled/" in name]
    assert bundled == ["orchestry/_bundled/tasks/task.py"]


# --- a run ----------------------------------------------------------------------------------------


@needs_ssh
@pytest.mark.slow
def test_a_run_outlives_its_connection_and_is_stopped_continued_and_copied(
    cli: CommandLine, server: Server, box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", KEY)
    orders = ["--send-key", "MY_API_KEY", "--", *map(str, (*FAKE, *SLOW)), "--run-name", NAME]
    begun = threading.Thread(target=_cut_once_it_runs, args=(server, box))
    begun.start()
    lost = cli("remote", "run", "gpu", *orders)
    begun.join()
    assert lost.code == 1, lost
    assert "the connection ended" in lost.last

    (started,) = sessions(box, NAME)
    _key_is_only_in_its_environment(box, started["group"])
    monkeypatch.delenv("MY_API_KEY")
    log = box / "runs" / NAME / "remote" / "log"
    until(lambda: log.exists() and log.stat().st_size)
    shown = cli("remote", "monitor", "gpu", NAME)
    assert shown.code == 0, shown
    assert f"{NAME} runs (" in shown.out
    assert "  log: " in shown.out
    cli("remote", "run", "gpu", *orders[2:]).failed(2, f"gpu has a run '{NAME}'", "--run-name")
    cli("remote", "resume", "gpu", NAME).failed(2, "runs on gpu already")
    cli("remote", "setup", "gpu").failed(2, "with an older orchestry than is here")

    assert cli("remote", "sync", "gpu").code == 0  # while it is being written
    copy = Path("runs") / NAME
    before = len(orchestry.load_run(copy).events)
    stopped = cli("remote", "stop", "gpu", NAME)
    assert "ended with exit code 130" in stopped.out, stopped
    assert "nothing runs on gpu, which still costs" in stopped.err
    assert "does not run" in cli("remote", "stop", "gpu", NAME).out
    assert cli("remote", "resume", "gpu", NAME, "--", "--episodes", 13).code == 0
    assert cli("remote", "monitor", "gpu", NAME, "--wait").code == 0
    last = cli("remote", "sync", "gpu", NAME)
    assert last.out.startswith(f"runs/{NAME} is done"), last
    run = orchestry.load_run(copy)
    assert len(run.events) > before
    assert (run.summary.episodes, run.summary.stopped) == (13, "done")
    assert (copy / "journal.jsonl").read_bytes() == (
        box / "runs" / NAME / "journal.jsonl"
    ).read_bytes()
    assert cli("report", copy).code == 0
    assert not [path for path in (Path(), box, Path.home()) if (path / "gone").exists()]

    assert cli("resume", copy, "--episodes", 14, "--task-path", TASKS).code == 0  # goes on here
    again = cli("remote", "sync", "gpu")
    assert again.code == 2, again
    assert "that run was continued here" in again.err
    assert orchestry.load_run(copy).summary.episodes == 14


def _cut_once_it_runs(server: Server, box: Path) -> None:
    until(lambda: sessions(box, NAME))
    server.cut()


def _key_is_only_in_its_environment(box: Path, group: int) -> None:
    (run,) = children(group)
    until(lambda: KEY in Path(f"/proc/{run}/environ").read_text())
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert KEY.encode() not in path.read_bytes(), path
        except (FileNotFoundError, ProcessLookupError):
            continue
    files = [path for path in box.rglob("*") if path.is_file() and "venv" not in path.parts]
    assert len(files) > 3
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@needs_ssh
@pytest.mark.slow
def test_a_run_that_can_not_begin_says_why_and_leaves_its_name_free(
    cli: CommandLine, box: Path
) -> None:
    order = ("remote", "run", "gpu", "--", *FAKE, "--run-name", "r")
    (box / "venv" / "bin" / "orchestry").rename(box / "gone")
    cli(*order).failed(1, "r ended on gpu with exit code 127", "venv/bin/orchestry")
    (box / "gone").rename(box / "venv" / "bin" / "orchestry")
    assert cli(*order).code == 0
    assert cli("remote", "monitor", "gpu", "r", "--wait").code == 0
    assert [event.get("code") for event in sessions(box, "r")] == [None, 127, None, 0]


@needs_ssh
@pytest.mark.slow
def test_a_killed_run_is_known_as_killed_and_continued(cli: CommandLine, box: Path) -> None:
    """A run of backend ppo, whose checkpoint is then used here."""
    order = ("remote", "run", "gpu", "--", *PPO, "--cpu", "--run-name", "r")
    assert cli(*order).code == 0
    group, there = sessions(box, "r")[0]["group"], box / "runs" / "r"
    until(lambda: len(list(there.glob("checkpoints/*.pt"))) > 1, 120)
    os.killpg(group, 9)
    until(lambda: not Path(f"/proc/{group}").exists() or not children(group))
    found = json.loads(cli("remote", "monitor", "gpu", "--json").out)
    (run,) = found["runs"]
    assert (run["running"], run["code"]) == (False, None)
    assert 0 < run["seconds"] < 150
    assert run["usd"] == pytest.approx(2.5 * run["seconds"] / 3600)
    assert len(found["reminders"]) == 2
    assert "was killed" in cli("remote", "monitor", "gpu").out
    *_, last = (there / "progress.jsonl").read_text().splitlines()
    steps = json.loads(last)["steps"] + 1000
    assert cli("remote", "resume", "gpu", "r", "--", "--set", f"ppo.steps={steps}").code == 0
    assert "r is done" in cli("remote", "monitor", "gpu", "r", "--wait").out
    assert cli("remote", "sync", "gpu", "r").code == 0
    task: Any = load_task("bucket_brigade")
    games = task.vectors(5, seed=0)
    policy = orchestry.load_run("runs/r").policy()
    assert policy.act(games.observations, games.ended).shape == (5, 4, 3)


@needs_ssh
@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "title", "program"),
    [("--page", b"<title>", b"http.server"), ("--tensorboard", b"TensorBoard", b"tensorboard")],
)
def test_a_page_is_shown_here_and_its_server_ends(
    cli: CommandLine, box: Path, flag: str, title: bytes, program: bytes
) -> None:
    cli("remote", "monitor", "gpu", flag).failed(2, "gpu has no run yet")
    assert cli("remote", "run", "gpu", "--", *FAKE, "--run-name", NAME).code == 0
    assert cli("remote", "monitor", "gpu", "--wait").code == 0
    command = [sys.executable, "-m", "orchestry", "remote", "monitor", "gpu", flag]
    environ, pipe = {**os.environ, "PYTHONPATH": str(_ROOT)}, subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, text=True, env=environ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-3]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert title in answer.read()
        process.send_signal(2)
    assert process.returncode == 0
    served = str(box / "venv").encode()
    until(lambda: not any(served in line and program in line for line in _cmdlines()))
    (box / "venv" / "bin" / "tensorboard").unlink()
    cli("remote", "monitor", "gpu", "--tensorboard").failed(2, "setup gpu --extra tensorboard")


_ROOT = Path(orchestry.__file__).parents[1]


def _cmdlines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


# --- copies ---------------------------------------------------------------------------------------


@needs_ssh
@pytest.mark.slow
def test_a_copy_that_is_cut_off_goes_on_and_is_no_run_before(
    cli: CommandLine, box: Path, tmp_path: Path
) -> None:
    assert cli("remote", "run", "gpu", "--", *FAKE, "--run-name", "r").code == 0
    assert cli("remote", "monitor", "gpu", "--wait").code == 0
    big = os.urandom(8_000_000)
    (box / "runs" / "r" / "checkpoints").mkdir()
    (box / "runs" / "r" / "checkpoints" / "000001.pt").write_bytes(big)
    copy = tmp_path / "runs" / "r"

    def slow(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        if command[0] != "rsync":
            return shell(command, errors)
        process = shell(["rsync", "--bwlimit=2000", *command[1:]], errors)
        threading.Thread(target=_end_midway, args=(process, copy / "checkpoints")).start()
        return process

    with pytest.raises(OrchestryError, match="the same command goes on"):
        pull(connect("gpu", shell=slow), "r", Path("runs"), lambda line: None)
    partial = copy / "checkpoints" / ".rsync-partial" / "000001.pt"
    assert 0 < partial.stat().st_size < len(big)
    with pytest.raises(ConfigError, match="holds no run"):
        orchestry.load_run(copy)

    lines = list[str]()

    def counted(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        more = ["--stats"] if command[0] == "rsync" else []
        return shell([command[0], *more, *command[1:]], errors)

    had = partial.stat().st_size
    pull(connect("gpu", shell=counted), "r", Path("runs"), lines.append)
    assert (copy / "checkpoints" / "000001.pt").read_bytes() == big
    (sent,) = (line for line in lines if line.startswith("Literal data:"))
    assert int(sent.split()[2].replace(",", "")) < len(big) - had + 200_000
    assert orchestry.load_run(copy).summary.episodes == 3


@needs_ssh
@pytest.mark.slow
def test_policies_learn_there_and_a_copy_plays_at_each_moment(cli: CommandLine, box: Path) -> None:
    """The run deletes a checkpoint as soon as the journal names the next one."""
    often = ("ppo.games=64", "ppo.checkpoint_every=80000", "ppo.keep=1")
    sets = [word for one in often for word in ("--set", one)]
    learn = ("--backend", "ppo", "--task", "bucket_brigade", "--cpu", "--steps", "100M", *sets)
    assert cli("remote", "run", "gpu", "--", *learn, "--run-name", "p").code == 0
    until(lambda: list((box / "runs" / "p").glob("checkpoints/*.pt")))
    for _ in range(3):
        copied = cli("remote", "sync", "gpu", "p")
        assert copied.code == 0, copied
        assert len(orchestry.load_run("runs/p").policy().act(*_SEEN)) == 1
    assert cli("remote", "stop", "gpu", "p").code == 0


_SEEN = (np.zeros((1, 4, 42), np.float32), np.ones(1, np.bool_))


def test_a_copy_waits_for_the_checkpoints_that_the_journal_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed, host = iter(range(9)), connect("gpu")

    def begun(*args: object) -> dict[str, Any]:
        (tmp_path / "r").mkdir(exist_ok=True)
        return {"needed": [f"{next(needed)}.pt"], "journals": {}}

    def files(*args: object) -> int:
        (tmp_path / "r" / "3.pt").touch()
        return 0

    monkeypatch.setattr(remote_runs, "_begun", begun)
    monkeypatch.setattr(remote_runs, "_files", files)
    pull(host, "r", tmp_path, print)
    assert next(needed) == 4
    monkeypatch.setattr(remote_runs, "_TRIES", 3)
    with pytest.raises(OrchestryError, match="replaces its checkpoints faster"):
        pull(host, "r", tmp_path, print)
    monkeypatch.setattr(remote_runs, "_begun", lambda *_: {"needed": ["0.pt"], "journals": {}})
    pull(host, "r", tmp_path, print)  # nothing is replaced: its checkpoint is missing there too


def _loud(host: str) -> Shell:
    """Runs here what ssh would run, in the folder of a host that prints when a session ends."""

    def start(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        cut = [word for word in command[1:] if not word.startswith("-")]
        said = f"cd {host} && PATH=$PWD/bin:$PATH; {cut[-1]}; code=$?; echo logout; exit $code"
        return shell(["sh", "-c", said] if command[0] == "ssh" else ["true"], errors)

    return start


def test_words_at_a_sessions_end_are_no_part_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("there/orchestry-remote/runs/r", "here/r"):
        (tmp_path / place).mkdir(parents=True)
    journal = '{"kind":"x"}\n'
    (tmp_path / "there/orchestry-remote/runs/r/journal.jsonl").write_text(journal)
    host = connect("gpu", shell=_loud(str(tmp_path / "there")))
    monkeypatch.setattr(
        remote_runs, "_begun", lambda *_: {"needed": [], "journals": {"journal.jsonl": (13, True)}}
    )
    pull(host, "r", tmp_path / "here", print)
    assert (tmp_path / "here/r/journal.jsonl").read_text() == journal


def test_setup_reads_an_answer_between_other_words(tmp_path: Path) -> None:
    """Its Python there prints nothing, so that no order is answered after the first."""
    folder = tmp_path / "orchestry-remote"
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").write_text("#!/bin/sh\n")
    (folder / "venv" / "bin" / "python").chmod(0o755)
    (folder / "setup.json").write_text('{"since": 5, "wheel": "", "extras": []}\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rsync").symlink_to("/bin/true")  # setup asks only whether it is there
    with pytest.raises(OrchestryError, match="found 'logout' in place of an answer"):
        set_up(connect("gpu", shell=_loud(str(tmp_path))), (), None, False, print)
    with pytest.raises(OrchestryError, match="found '' in place of an answer"):
        set_up(
            connect("gpu", shell=lambda _, errors: shell(["true"], errors)), (), None, False, print
        )


def test_where_a_copy_can_not_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "ask", lambda *_, **__: {"first": "", "journals": {}})
    (tmp_path / "file").touch()
    (tmp_path / "r").symlink_to(tmp_path / "gone")
    for into in (tmp_path / "file", tmp_path):
        with pytest.raises(ConfigError, match=r"r can't be made .*--into DIR"):
            pull(connect("gpu"), "r", into, print)


@pytest.mark.parametrize("code", [12, 20, 255])
def test_a_connection_that_ended_is_known_by_the_exit_code(code: int) -> None:
    said = "rsync error: received SIGTERM (code 20)\nrsync: [generator] write error: Broken pipe"
    assert "the same command goes on" in str(connect("gpu").fault(code, said))
    assert "the same command goes on" not in str(connect("gpu").fault(23, said))


@pytest.mark.parametrize("code", [11, 12])
def test_a_full_disk_is_named_whichever_end_lost_the_other(code: int) -> None:
    said = "rsync: [receiver] write failed on runs/r: No space left on device (28)"
    assert "make room" in str(connect("gpu").fault(code, said))


def _end_midway(process: subprocess.Popen[bytes], folder: Path) -> None:
    until(lambda: any(path.stat().st_size > 1_000_000 for path in folder.glob(".0*")))
    process.terminate()


@needs_ssh
@pytest.mark.slow
def test_another_run_here_is_left_alone_and_the_others_are_copied(
    cli: CommandLine, box: Path
) -> None:
    for name in ("one", "two"):
        assert cli("remote", "run", "gpu", "--", *FAKE, "--run-name", name).code == 0
    assert cli("remote", "monitor", "gpu", "--wait").code == 0
    assert cli("run", *FAKE, "--seed", 7, "--run-name", "one").code == 0
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    result = cli("remote", "sync", "gpu")
    assert result.code == 2, result
    assert "one is not copied" in result.err
    assert "another run than 'one' of gpu" in result.err
    assert {path: path.read_bytes() for path in before} == before
    assert orchestry.load_run("runs/two").summary.episodes == 3
    (Path("runs/two") / "mine.txt").write_text("kept")
    shutil.rmtree(box / "runs" / "two" / "remote" / "sent")
    assert cli("remote", "sync", "gpu", "two", "--into", "runs").code == 0
    assert (Path("runs/two") / "mine.txt").read_text() == "kept"
    assert (Path("runs/two") / "remote" / "sent" / "config.yaml").exists()
    assert cli("remote", "sync", "gpu", "--into", "elsewhere").code == 0
    assert orchestry.load_run("elsewhere/one").config["seed"] == 0


# --- what is sent ---------------------------------------------------------------------------------


def test_what_a_config_names_is_sent_and_named_anew(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("run", *FAKE, "--run-name", "r").code == 0
    Path("lib.yaml").write_text("{}")
    Path("posts.jsonl").write_text('{"prompt": "x", "split": "train"}\n')
    Path("said.jsonl").write_text("{}\n")
    raw = {
        "task": "tldr",
        "options": {"path": "posts.jsonl"},
        "behaviors": {"from": "lib.yaml"},
        "provider": {"name": "fake", "fake": {"script": "said.jsonl"}},
        "learn": {"from": "runs/r/stages"},
        "recipe": {"stages": {"distil": {"learn": {"from": "lib.yaml"}}}},
        "agents": {
            "summary": {"provider": {"name": "local", "team": "runs/r"}},
            "critic": {"plays": ["guard", "runs/r", "runs/r/checkpoints/000003.pt"]},
        },
    }
    Path("runs/r/stages").mkdir()
    Path("runs/r/checkpoints").mkdir()
    Path("runs/r/checkpoints/000003.pt").touch()
    place = tmp_path / "staged"
    place.mkdir()
    stage(validate(raw), place, "runs/x/remote/sent", {})
    sent = yaml.safe_load((place / "config.yaml").read_text())
    names = {path.name.partition("-")[2]: path for path in place.iterdir()}
    at = {name: f"runs/x/remote/sent/{path.name}" for name, path in names.items() if name}
    assert sent["behaviors"]["from"] == at["lib.yaml"]
    assert sent["recipe"]["stages"]["distil"]["learn"]["from"] == at["lib.yaml"]
    assert sent["options"]["path"] == at["posts.jsonl"]
    assert sent["provider"]["fake"]["script"] == at["said.jsonl"]
    assert sent["agents"]["summary"]["provider"]["team"] == at["r"]
    assert sent["agents"]["critic"]["plays"] == [
        *("guard", at["r"]),
        f"{at['r']}/checkpoints/000003.pt",
    ]
    assert sent["learn"]["from"] == f"{at['r']}/stages"  # with the run that explains it
    assert names["r"].resolve() == Path("runs/r").resolve()


def test_a_bank_of_ones_own_is_sent_and_a_known_one_is_not(
    cli: CommandLine, tmp_path: Path
) -> None:
    Path("bank.jsonl").write_text("{}\n")
    for bank in ("bank.jsonl", "generated"):
        place = tmp_path / bank.partition(".")[0]
        place.mkdir()
        config = validate({"task": "code_review", "options": {"bank": bank}})
        stage(config, place, "sent", {})
        found = yaml.safe_load((place / "config.yaml").read_text())["options"]["bank"]
        assert found == {"bank.jsonl": "sent/0-bank.jsonl"}.get(bank, bank)


def test_a_task_of_ones_own_is_sent_and_a_bundled_one_is_not(
    cli: CommandLine, tmp_path: Path
) -> None:
    for task, folder in (("words", TASKS), ("tldr", None)):
        place = tmp_path / task
        place.mkdir()
        config = validate({"task": task, "task_path": [folder] if folder else []})
        stage(config, place, "sent", {})
        found = yaml.safe_load((place / "config.yaml").read_text())["task_path"]
        assert found == (["sent/tasks"] if folder else [])
        assert (place / "tasks" / task / "task.py").exists() == bool(folder)


@pytest.mark.parametrize("backend", ["api", "local", "ppo"])
def test_the_host_makes_the_same_config_of_it(
    cli: CommandLine, tmp_path: Path, backend: str
) -> None:
    """Also where the user has a configs/<backend>.yaml of his own, without some of our keys."""
    task = {"api": "words", "local": "code_collaboration", "ppo": "bucket_brigade"}[backend]
    Path("configs").mkdir()
    Path("configs/local.yaml").write_text("learn: {rank: 8}\n")
    own = [Path("configs/local.yaml")] if backend == "local" else []
    flags = {"backend": backend, "task": task, "task_path": [str(TASKS)]}
    config = resolve(own, [], flags)
    stage(config, tmp_path, "sent", {})
    shipped = bundled("configs") / f"{backend}.yaml"
    base = read_config_file(shipped) if shipped.exists() else {}
    sent = yaml.safe_load((tmp_path / "config.yaml").read_text())
    found = validate(merge(base, sent))
    assert found.model_copy(update={"task_path": config.task_path}) == config


@pytest.mark.parametrize(
    ("args", "keys", "said"),
    [
        (["--set", "behaviors.from=no/lib.yaml"], {}, "'behaviors.from' names no/lib.yaml"),
        (["--set", "judge.rubric=say 12345678"], {"K": "12345678"}, "holds the value of K"),
    ],
)
def test_what_can_not_be_sent_is_refused(
    cli: CommandLine, tmp_path: Path, args: list[str], keys: dict[str, str], said: str
) -> None:
    config = resolve([], args[1::2], {"task": "words", "task_path": [str(TASKS)]})
    with pytest.raises(ConfigError, match=said):
        stage(config, tmp_path, "sent", keys)


# --- wrong orders ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "h", "--", "--run-dir", "x"], "--run-name names it"),
        (["run", "h", "--", "--dry-run"], "a dry run needs no host"),
        (["run", "h", "--", "--task", "no"], "unknown task 'no'"),
        (["run", "h", "--", *FAKE, "--run-name", "a/b"], "without slashes"),
        (["run", "h", "--send-key", "NO_SUCH_KEY", "--", *FAKE], "export NO_SUCH_KEY"),
        (["run", "h", "--send-key", KEY, "--", *FAKE], "a variable's name"),
        (["resume", "h", "r", "--", "--task-path", str(TASKS)], "its task was sent with it"),
        (["stop", "h", ".."], "without slashes"),
        (["monitor", "--", "-oProxyCommand=touch gone"], "is no host"),
        (["monitor", "a b"], "is no host"),
        (["monitor", "h", "-p", "99999"], "less than or equal to 65535"),
    ],
)
def test_a_wrong_order_is_refused_before_anything_is_sent(
    cli: CommandLine, args: list[str], said: str
) -> None:
    result = cli("remote", *args)
    assert (result.code, said in result.last, KEY in result.err) == (2, True, False), result
    assert not Path("gone").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu: {usd_per_hour: cheap}", "remote.yaml, gpu: config key 'usd_per_hour' is 'cheap'"),
        ("gpu: {usd_per_hours: 2}", "did you mean 'usd_per_hour'?"),
        ("gpu: 3", "remote.yaml, gpu"),
        ("[", "remote.yaml can't be read"),
        ('gpu: {ssh_options: ["Port=2\\0"]}', "null byte): correct remote.yaml"),
    ],
)
def test_a_faulty_remote_yaml_names_its_fault(cli: CommandLine, text: str, said: str) -> None:
    Path("remote.yaml").write_text(text)
    cli("remote", "monitor", "gpu").failed(2, said)


def test_the_remote_yaml_of_a_strangers_run_is_not_read(cli: CommandLine) -> None:
    Path("remote.yaml").write_text('gpu: {ssh_options: ["ProxyCommand=touch gone"]}')
    Path("journal.jsonl").touch()
    cli("remote", "monitor", "gpu").failed(2, "remote.yaml lies in the folder of a run")
    assert not Path("gone").exists()


@pytest.mark.slow
@needs_ssh
def test_what_ssh_refuses_is_said_with_its_fix(
    cli: CommandLine, server: Server, tmp_path: Path
) -> None:
    entry = server.entry(folder=str(tmp_path / "box"))
    options = [str(option) for option in entry["ssh_options"]]  # type: ignore[attr-defined]
    write_remote(
        gpu=entry,
        gone={"address": "no-such-host.invalid"},
        stranger={**entry, "ssh_options": ["UserKnownHostsFile=none", *options[1:]]},
    )
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", "other"], check=True)
    other = {**entry, "ssh_options": [options[0], "IdentityFile=other", *options[2:]]}
    write_remote(**yaml.safe_load(Path("remote.yaml").read_text()), locked=other)
    look = ("remote", "monitor")
    cli(*look, "gone").failed(2, "Could not resolve hostname", "~/.ssh/config")
    cli(*look, "gpu", "-p", 1).failed(2, "Connection refused", "(-p)")
    cli(*look, "locked").failed(2, "Permission denied", "ssh-copy-id")
    cli(*look, "stranger").failed(2, "Host key verification failed", "fingerprint")
    cli(*look, "gpu", "--ssh-option", "Nope=1").failed(2, "Bad configuration option", "ssh -o")


# --- on the host ----------------------------------------------------------------------------------


def test_a_report_has_the_last_checkpoint_and_all_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "r"
    (run / "remote").mkdir(parents=True)
    (run / "remote" / "log").write_bytes(b"old\nnew \xff line\n\n")
    events = [{"started": 100.0, "group": 1}, {"ended": 160.0, "code": 130}]
    events += [{"started": 200.0, "group": 1}, {"ended": 300.0, "code": 0}]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (run / "remote" / "sessions.jsonl").write_text(lines)
    assert there.report(run)["learned"] is None
    journal = Journal(run / "journal.jsonl")
    for update in (1, 2):
        state = {"checkpoint": f"checkpoints/{update}.pt", "steps": update * 1000, "recent": [1.0]}
        journal.append(Learned(update=update, state=state, at=float(update)))
    journal.close()
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b'{"kind":"learned","update":3')  # being written
    found = there.report(run)
    assert (found["seconds"], found["code"], found["running"]) == (160.0, 0, False)
    assert found["last"] == "new \ufffd line"
    want = {"update": 2, "at": 2.0, "checkpoint": "checkpoints/2.pt", "steps": 2000}
    assert found["learned"] == want
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(there, "RUNS", Path())
    assert there.journals("r", {})["needed"] == ["checkpoints/2.pt"]


def test_a_name_that_could_not_begin_is_claimed_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there.claim("r")
    file = there.RUNS / "r" / "remote" / "sent" / "gone.py"
    file.touch()
    there.claim("r")
    assert not file.exists()
    file.touch()
    (there.RUNS / "r" / "journal.jsonl").touch()
    assert there.claim("r")["taken"]
    assert file.exists()


def test_an_answer_is_found_between_the_lines_of_login_scripts() -> None:
    host = connect("gpu")
    lines = (b"Welcome", f"{there.MARK}[1]".encode(), b"logout")
    assert host.answer(lines) == [1]
    with pytest.raises(OrchestryError, match=r"gpu: found 'Welcome' in place of an answer"):
        host.answer([b"Welcome"])


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives the machine an nvidia-smi: a script of these lines. It has none before."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def give(lines: str) -> None:
        (programs / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}\n")
        (programs / "nvidia-smi").chmod(0o755)

    return give


def test_gpus_are_read_from_nvidia_smi(smi: Callable[[str], None]) -> None:
    """Of a script that prints a line of the form that nvidia-smi prints."""
    keys = ("name", "utilization.gpu", "memory.used", "memory.total")
    assert probe.gpus(keys) == ([], "")
    smi("echo 'NVIDIA H100 80GB HBM3, 87, 12595, 81559'")
    (gpu,), fault = probe.gpus(keys)
    assert gpu["name"] == "NVIDIA H100 80GB HBM3"
    assert (gpu["utilization.gpu"], gpu["memory.total"], fault) == ("87", "81559", "")


@pytest.mark.parametrize(
    ("script", "gpus", "said"),
    [
        ("exec /bin/sleep 60", [], "! nvidia-smi: no answer within 0.5 s"),
        ("echo 'Failed to initialize NVML'; exit 9", [], "! nvidia-smi: Failed to initialize NVML"),
        ("echo 'NVIDIA GB10, 5, [N/A], [N/A]'", ["NVIDIA GB10"], "5 % busy, [N/A] of [N/A] GiB"),
    ],
)
def test_runs_are_shown_whatever_nvidia_smi_says(
    smi: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    gpus: list[str],
    said: str,
) -> None:
    """Also where its driver hangs, and of a GPU that has no memory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "GPUS_S", 0.5)
    Path("setup.json").write_text('{"since": 0}')
    smi(script)
    there._note(_claimed("r"), {"started": 1.0, "group": 1})
    state = there.status([])
    assert [gpu["name"] for gpu in state["gpus"]] == gpus
    for one in state["runs"]:
        one["usd"] = None
    _show(connect("gpu"), state)
    shown = capsys.readouterr().out
    assert said in shown
    assert "r was killed" in shown


def _claimed(name: str) -> Path:
    there.claim(name)
    run = there.RUNS / name
    (run / "remote" / "log").touch()
    return run


def test_a_note_that_a_full_disk_cut_off_is_left_out(
    smi: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hides no other run, and what comes behind it is read."""
    monkeypatch.chdir(tmp_path)
    Path("setup.json").write_text('{"since": 0}')
    whole, torn, empty = (_claimed(name) for name in ("whole", "torn", "empty"))
    for run in (whole, torn):
        there._note(run, {"started": 1.0, "group": 1})
    with (torn / "remote" / "sessions.jsonl").open("a") as file:
        file.write('{"ended": 9')
    (empty / "remote" / "sessions.jsonl").touch()
    assert [run["run"] for run in there.status([])["runs"]] == ["torn", "whole"]
    assert there.report(torn)["code"] is None
    there._note(torn, {"started": 20.0, "group": 1})
    there._note(torn, {"ended": 30.0, "code": 0})
    assert there.report(torn)["code"] == 0
    assert there.report(torn)["started"] == 20.0


def test_the_page_explains_every_setting_of_a_host() -> None:
    page = (_ROOT / "docs" / "remote.md").read_text(encoding="utf-8")
    lines = explanations(HostConfig)
    assert all(f"| `{name}` |" in page for name in lines)
    assert all(lines.values())
