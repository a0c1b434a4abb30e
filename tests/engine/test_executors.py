"""Processes of this machine: commands, and a launch that a run begins itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.executor import ONE, Needs, On, environs
from orchestry.core.machine import cores, launched
from orchestry.engine.executors import (
    LOCAL,
    Here,
    Launched,
    Running,
    launching,
    needs_of,
    open_executor,
)
from orchestry.engine.run import prepare
from orchestry.engine.trust import check_trust


def test_what_an_executor_is() -> None:
    assert On.of("local") == On("local")
    assert On.of("processes") == On("processes", count=cores())
    assert On.of("processes:3") == On("processes", count=3)
    assert On.of("ray") == On("ray")
    assert On.of("ray://10.0.0.1:10001") == On("ray", "ray://10.0.0.1:10001")
    assert open_executor("processes:3").at_once(ONE) == 3
    assert LOCAL.at_once(ONE) == 1


@pytest.mark.parametrize("odd", ["", "threads", "processes:0", "ray:", "ray://host", "local:2"])
def test_no_other_executor(odd: str) -> None:
    with pytest.raises(ConfigError, match="config key 'executor'"):
        resolve([], [], {"executor": odd})


def test_a_cluster_of_somebody_else_is_asked_about(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    for here in ("local", "processes:2", "ray"):
        check_trust(resolve([], [], {"executor": here}), file)
    with pytest.raises(
        ConfigError, match=r"executor ray://203\.0\.113\.7:10001 \(commands would run there"
    ):
        check_trust(resolve([], [], {"executor": "ray://203.0.113.7:10001"}), file)
    with pytest.raises(ConfigError, match="user, password or query"):
        resolve([], [], {"executor": "ray://me:pass@host:10001"})


def test_each_process_of_a_launch_knows_its_place() -> None:
    found = environs(["a", "b", "a", "b", "b"], "10.0.0.1", 7)
    assert [one["RANK"] for one in found] == ["0", "1", "2", "3", "4"]
    assert [one["LOCAL_RANK"] for one in found] == ["0", "0", "1", "1", "2"]
    assert [one["LOCAL_WORLD_SIZE"] for one in found] == ["2", "3", "2", "3", "3"]
    assert {one["WORLD_SIZE"] for one in found} == {"5"}
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("10.0.0.1", "7")}
    assert launched(found[4]).local_rank == 2


def test_what_a_process_takes() -> None:
    assert needs_of(resolve([], ["backend=api"])) == ONE
    local = ["backend=local", "learn.threads=4"]
    assert needs_of(resolve([], local)) == Needs(4, None)
    assert needs_of(resolve([], [*local, "learn.device=cuda"])) == Needs(4, 1)
    assert needs_of(resolve([], [*local, "ranks=3", "executor=processes"])) == Needs(2, None)
    assert needs_of(resolve([], [*local, "learn.device=cpu"])) == Needs(4, 0)


def test_one_process_is_no_launch() -> None:
    with LOCAL.launch(1, ONE):
        assert "WORLD_SIZE" not in os.environ
    with pytest.raises(ConfigError, match="ranks=2 are several processes"), LOCAL.launch(2, ONE):
        pass
    with pytest.raises(ConfigError, match="backend api takes one process, and 2 were asked for"):
        prepare(resolve([], ["ranks=2", "executor=processes", "provider.name=fake"]))


def test_a_launch_stays_until_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import orchestry.engine.executors as module

    begun = list[int]()

    def started(count: int) -> Launched:
        begun.append(count)
        own, *others = environs(["here"] * count, "127.0.0.1", 1)
        return Launched(own, [_Idle() for _ in others])

    monkeypatch.setattr(module, "_launched", None)
    monkeypatch.setattr("atexit.register", lambda work: None)
    for _ in range(2):
        with launching(2, started):
            assert launched().processes == 2
        assert "WORLD_SIZE" not in os.environ
    with launching(1, started):  # a run between them that takes one
        assert launched().processes == 1
    assert begun == [2]
    with pytest.raises(ConfigError, match="belongs to a launch of 2"), launching(3, started):
        pass
    monkeypatch.setattr(_Idle, "code", 1)
    with pytest.raises(ConfigError, match="process 1 of this launch of 2 has ended"):
        launching(2, started).__enter__()
    assert "WORLD_SIZE" not in os.environ


def test_a_launcher_began_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Here(On("local")).launch(2, ONE):
        assert launched().processes == 2
    with pytest.raises(ConfigError, match="belongs to a launch of 2"), LOCAL.launch(3, ONE):
        pass


class _Idle:
    code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def wait(self, seconds: float) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.slow
def test_a_command_is_heard_interrupted_and_ended(tmp_path: Path) -> None:
    job = Running(["--version"], tmp_path / "log", {})
    while job.poll() is None:
        job.wait(1.0)
    assert job.poll() == 0
    assert "version" in (tmp_path / "log").read_text()
    for end in (Running.interrupt, Running.close):
        run = tmp_path / end.__name__
        fake = ["--provider", "fake", "--episodes", "100000", "--run-dir", str(run)]
        job = Running(["run", *fake], tmp_path / "log", {})
        while not (run / "episodes.jsonl").exists():
            job.wait(0.1)
            assert job.poll() is None, (tmp_path / "log").read_text()
        end(job)
        job.wait(60.0)
        assert job.poll() == 130


def gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.mark.slow
def test_an_interrupt_that_was_swallowed_comes_again() -> None:
    child = (
        "import os, time\n"
        "from orchestry.core import machine\n"
        "machine.AGAIN_S = 0.2\n"
        "machine.end_with_parent(0)\n"  # which is not its parent, as of one that has ended
        "try:\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", child], timeout=30, capture_output=True, text=True)
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert done.returncode == -signal.SIGINT


@pytest.mark.slow
def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """A follower waits for a launch whose first process is gone before it joined."""
    child = (
        "import os, subprocess, sys\n"
        "own = {'ORCHESTRY_PARENT': str(os.getpid()), 'RANK': '1', 'WORLD_SIZE': '2',\n"
        "       'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '1'}\n"
        "p = subprocess.Popen([sys.executable, '-m', 'orchestry', 'run'], env=os.environ | own)\n"
        "print(p.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", child]
    with subprocess.Popen(command, stdin=-1, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        follower = int(parent.stdout.readline())
        time.sleep(1.0)
        parent.send_signal(signal.SIGKILL)
    for _ in range(300):
        if gone(follower):
            return
        time.sleep(0.1)
    os.kill(follower, signal.SIGKILL)
    raise AssertionError("the follower went on")
