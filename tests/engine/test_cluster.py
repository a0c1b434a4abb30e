"""A real Ray cluster of two machines, each a set of processes; one is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.executor import ONE, Job, Level, Lost, Needs
from orchestry.core.sandboxed import Call, Limits
from orchestry.engine.executors import LOCAL, open_executor
from orchestry.sandbox.elsewhere import Elsewhere
from orchestry.store.run import load_run
from tests.backends.letters import TASK, settings, write_task
from tests.backends.local.tiny import tiny_folder
from tests.cli.support import TASKS

pytestmark = pytest.mark.slow
PROGRAM = """
def work(n):
    total = 0
    for i in range(n):
        total += i % 7
    return total
"""
RUNS = 24
LONG = (
    *("run", "--provider", "fake", "--set", "provider.fake.latency_s=0.5"),
    *("--episodes", "100000", "--run-dir"),
)


class Machines:
    """A head and a second machine, of one CPU each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.address = str(self._cluster.address)
        self._second: Any = None

    def join(self) -> None:
        """The second machine is there."""
        if self._second is None:
            self._second = self._cluster.add_node(num_cpus=1)
        self._cluster.wait_for_nodes()

    def lose(self) -> None:
        """All processes of the second machine end at once (SIGKILL)."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = None

    def close(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    found = Machines()
    yield found
    found.close()


@pytest.fixture
def machines(cluster: Machines, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    cluster.join()
    return cluster


async def scored(
    sandbox: Level, mark: str, lost: Machines | None = None, runs: int = RUNS
) -> list[Any]:
    """The results of different programs; in their middle a machine may be lost."""
    done = 0

    async def one(number: int) -> Any:
        nonlocal done
        code = f"{PROGRAM}# {mark} {number}\n"
        (result,) = await sandbox.run(code, "work", [Call(args=(500_000 + number,))])
        done += 1
        if done == runs // 6 and lost is not None:
            lost.lose()
        return result.verdict, result.value

    return list(await asyncio.gather(*map(one, range(runs))))


def nodes(sandbox: Elsewhere) -> int:
    return len({server.facts["node"] for server in sandbox.servers})


async def here() -> list[Any]:
    async with open_executor("local").sandbox(Limits(wall_s=60)) as sandbox:
        return await scored(sandbox, "x")


async def in_two_at_once() -> list[list[Any]]:
    """As two runs on one cluster: each has room for a server, and wants two."""
    on = open_executor("ray")
    async with on.sandbox(Limits(wall_s=60)) as one, on.sandbox(Limits(wall_s=60)) as two:
        return list(await asyncio.gather(scored(one, "x"), scored(two, "x")))


async def elsewhere(machines: Machines) -> list[list[Any]]:
    """On two machines, of which one is lost at the second time."""
    async with open_executor("ray").sandbox(Limits(wall_s=60)) as sandbox:
        assert isinstance(sandbox, Elsewhere)
        async with asyncio.timeout(120):  # a slow machine's server comes later than the others' end
            while nodes(sandbox) < 2:
                await scored(sandbox, "until the second is there", runs=2)
        found = [await scored(sandbox, "x")]
        assert nodes(sandbox) == 2
        found.append(await scored(sandbox, "y", machines))
        assert nodes(sandbox) == 1
        return found


def test_programs_are_scored_elsewhere_and_again_if_a_machine_is_lost(machines: Machines) -> None:
    alone = asyncio.run(here())
    assert [verdict for verdict, _ in alone] == ["value"] * RUNS
    assert asyncio.run(in_two_at_once()) == [alone, alone]
    assert asyncio.run(elsewhere(machines)) == [alone, alone]


def started(on: Any, args: Sequence[str], log: Path, needs: Needs = ONE) -> Job:
    found: Job = on.start(args, log, needs)
    return found


def ended(job: Job) -> int:
    while (code := job.poll()) is None:
        job.wait(1.0)
    return code


def test_commands_run_elsewhere(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = open_executor("ray")
    assert on.at_once(ONE) == 2
    with pytest.raises(ConfigError, match="no machine of the Ray cluster has 2 CPUs"):
        on.at_once(Needs(2))
    job = started(on, ["--version"], tmp_path / "log")
    assert ended(job) == 0
    job.close()
    assert "version" in (tmp_path / "log").read_text()
    watching = started(on, [*LONG, str(tmp_path / "run")], tmp_path / "log")
    while " eta " not in (tmp_path / "log").read_text():
        assert watching.poll() is None
        time.sleep(0.1)
    watching.interrupt()
    assert ended(watching) == 130
    watching.close()
    with pytest.raises(ConfigError, match=r"missing can't be written"):
        started(on, ["--version"], tmp_path / "missing" / "log")
    monkeypatch.setattr("orchestry.engine.cluster._marked", lambda log: nullcontext("/nowhere"))
    with pytest.raises(ConfigError, match="of the Ray cluster does not see"):
        started(on, ["--version"], tmp_path / "log")


def test_a_lost_machine_loses_its_commands(machines: Machines, tmp_path: Path) -> None:
    on = open_executor("ray")
    jobs = [
        started(on, [*LONG, str(tmp_path / f"run-{i}")], tmp_path / f"log-{i}") for i in range(2)
    ]
    assert [job.poll() for job in jobs] == [None, None]
    machines.lose()
    left, end = [*jobs], time.monotonic() + 60
    while len(left) == 2:
        assert time.monotonic() < end
        for job in jobs:
            try:
                job.wait(0.5)
            except Lost:
                left.remove(job)
    (kept,) = left
    assert kept.poll() is None
    kept.close()


@pytest.mark.usefixtures("one_thread")
def test_two_machines_learn_as_one_process(machines: Machines, tmp_path: Path) -> None:
    model = str(tiny_folder(tmp_path / "tiny"))
    sets = settings(model, write_task(tmp_path / "tasks", TASK), "episodes=8")
    alone = orchestry.train(resolve([], sets), tmp_path / "one")
    words = [word for item in (*sets, "ranks=2") for word in ("--set", item)]
    command = [sys.executable, "-m", "orchestry", "run", "--run-dir", str(tmp_path / "two")]
    done = subprocess.run(
        [*command, *words, "--on", "ray"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert "2 processes draw and learn together" in done.stderr
    runs = alone, load_run(tmp_path / "two")
    one, two = ([episode.reward for episode in run.episodes] for run in runs)
    assert two == pytest.approx(one, abs=1e-5)
    assert len(one) == 8


def test_a_lost_machines_trials_go_on_elsewhere(machines: Machines, tmp_path: Path) -> None:
    run: dict[str, Any] = {
        "task": "words",
        "task_path": [str(TASKS)],
        "episodes": 6,
        "provider": {"name": "fake", "fake": {"latency_s": 0.5}},
        "search": {"concurrency": 4},  # so that it lasts: a loss is seen after a second or two
        "behaviors": {"enabled": False},
    }
    sweep = {
        "run": run,
        "keys": {"search.k_samples": {"low": 2, "high": 5}},
        "trials": 2,
        "pruner": "NopPruner",
    }
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    folder = tmp_path / "sweep"
    command = [sys.executable, "-m", "orchestry", "sweep", "--config", str(tmp_path / "sweep.yaml")]
    with subprocess.Popen(
        [*command, "--dir", str(folder), "--on", "ray", "--trust"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        while len([*folder.glob("trial-*/seed-*/metrics.jsonl")]) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        machines.lose()
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "the Ray cluster lost a process" in said
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert [one["state"] for one in trials] == ["complete"] * 2
    ends = [load_run(folder / run["folder"]).summary for one in trials for run in one["runs"]]
    assert [(end.stopped, end.episodes) for end in ends] == [("done", 6)] * 2


def test_a_launch_that_does_not_fit_is_refused(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestry.engine.cluster.ROOM_S", 3.0)
    with (
        pytest.raises(ConfigError, match="no room for 3 more processes of 1 CPUs within 3 s"),
        open_executor("ray").launch(4, ONE),
    ):
        pass


def test_no_cluster_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="there is no Ray cluster on this machine"):
        open_executor("ray")
    with pytest.raises(ConfigError, match=r"there is no Ray cluster at ray://127\.0\.0\.1:1 "):
        open_executor("ray://127.0.0.1:1")


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed: `pip install .*\[ray\]"):
        open_executor("ray")
    assert resolve([], [], {"executor": "ray"}).executor == "ray"
    assert LOCAL.at_once(ONE) == 1
