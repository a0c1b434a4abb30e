"""Two real processes learn as one by PPO: equal weights, exact resume, and ends in good order."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestry.backends.ppo.learner import Learner, Seats
from orchestry.backends.ppo.running import Moments
from orchestry.core.config import validate
from orchestry.core.errors import ConfigError
from orchestry.engine.arena import arena
from orchestry.engine.learners import check_count
from orchestry.engine.neural import measure
from orchestry.engine.run import resume, train
from orchestry.store.journal import Learned
from orchestry.store.progress import progress
from orchestry.store.run import load_run
from orchestry.task.vector import Player, Script
from tests.backends.ppo.launched import (
    ECHO,
    GAMES,
    Still,
    counted,
    drawn,
    launching,
    seen,
    settings,
    steps,
)

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"games": 16, "horizon": 8, "minibatch": 256, "checkpoint_every": 1000}


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    """On one core two processes may wait long for each other."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes found: see `launched.meet`."""
    folder = tmp_path_factory.mktemp("met")
    work = ("tests.backends.ppo.launched", str(folder))
    with launching(work, work) as both:
        said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("policies", ["shared", "own"])
def test_two_processes_take_the_step_of_one(met: list[dict[str, Any]], policies: str) -> None:
    one, other = met[0][policies], met[1][policies]
    assert all(torch.equal(one[name], other[name]) for name in one)
    own = settings(policies=policies)
    alone = Learner(Still(2 * GAMES, 0), own, Seats((0, 1)))
    wanted = steps(alone, drawn(alone.team.policies))
    assert wanted["length"] > 0.1
    for name, tensor in wanted.items():
        torch.testing.assert_close(one[name], tensor, atol=1e-6, rtol=1e-6, msg=name)


@pytest.mark.slow
def test_statistics_are_of_what_all_processes_saw(met: list[dict[str, Any]]) -> None:
    one, other = met[0]["moments"], met[1]["moments"]
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = torch.cat([part for rank in range(2) for part in seen(rank)])
    wanted = counted(Moments(3, torch.device("cpu")), [rows])
    for name, tensor in wanted.items():
        torch.testing.assert_close(one[name], tensor, atol=1e-9, rtol=1e-6, msg=name)
    assert one["square"][0] == 0  # else rounding would be blown up as if it were what varies


@pytest.mark.slow
def test_batches_leave_one_team_in_both_processes(met: list[dict[str, Any]]) -> None:
    assert met[0]["figures"] == met[1]["figures"]
    _, played = met[0]["figures"][-1]
    assert len(played.returns) == 2 * GAMES * 2  # a game has two steps, a batch four
    one, other = met[0]["state"], met[1]["state"]
    assert torch.equal(one["team"]["weights"], other["team"]["weights"])
    assert torch.equal(one["team"]["seen"]["mean"], other["team"]["seen"]["mean"])
    assert one["steps"] == 3 * 2 * GAMES * 4
    (own,) = one["ranks"]
    assert not torch.equal(own["random"], one["random"])


@pytest.mark.slow
def test_a_fault_of_one_process_is_told_in_all(met: list[dict[str, Any]]) -> None:
    for found in met:
        assert found["broken"] == "process 1: unforeseen ZeroDivisionError: a broken game"
        assert found["apart"].startswith("process 1 no longer has process 0's weights")


def _echo(folder: Path, text: str = ECHO) -> Path:
    """A folder with the task, to be worked in."""
    place = folder / "tasks" / "echo"
    place.mkdir(parents=True)
    (place / "task.py").write_text(text)
    return folder


def _run(folder: Path, *sets: str) -> list[str]:
    words = [part for one in sets for part in ("--set", one)]
    start = ["orchestry", "run", "--backend", "ppo", "--task", "echo", "--trust"]
    return [*start, "--run-dir", str(folder), *words]


def _ends(both: list[subprocess.Popen[str]]) -> tuple[str, str]:
    """What process 0 and the other said, which both have ended."""
    first, other = (process.communicate(timeout=240)[0] for process in both)
    return first, other


@pytest.mark.slow
def test_two_processes_learn_what_an_untrained_team_does_not_know(tmp_path: Path) -> None:
    here = _echo(tmp_path)
    sizes = ("ppo.games=32", "ppo.horizon=16", "ppo.minibatch=256", "ppo.hidden=[16]")
    run = _run(tmp_path / "run", *sizes, "ppo.steps=24k", "ppo.evaluate_every=8k")
    with launching(run, at=(here, here)) as both:
        first, other = _ends(both)
    assert (both[0].returncode, both[1].returncode, other) == (0, 0, ""), first
    assert "2 processes play and learn together" in first
    rows = progress(tmp_path / "run")
    assert [row["steps"] for row in rows] == list(range(512, 24_065, 512))
    assert rows[-1]["train/total_episodes"] == 24_064 / 8
    assert sum("evaluation/reward" in row for row in rows) == 3
    assert rows[0]["episode/reward"] < 4 < 7 < rows[-1]["episode/reward"]
    found = measure(load_run(tmp_path / "run"), {"task_path": [str(here / "tasks")]}, 50, print)
    means = {name: sum(map(sum, each)) / 100 for name, each in found.items()}
    assert means["untrained"] < 4
    assert means["learned"] > 7


def _config(**ppo: Any) -> dict[str, Any]:
    return {
        "backend": "ppo",
        "task": "bucket_brigade",
        "options": {"scenario": "hard"},
        "agents": {"agent_2": {"plays": ["self", "liar"]}, "agent_3": {"plays": "self"}},
        "ppo": {**SMALL, "pool": 3, "pool_every": 900, **ppo},
    }


def _started(config: dict[str, Any], folder: Path) -> list[str]:
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(config))
    return ["orchestry", "run", "--config", str(file), "--trust", "--run-dir", str(folder)]


def _last(folder: Path) -> dict[str, Any]:
    (event,) = [e for e in load_run(folder).events if isinstance(e, Learned)][-1:]
    found: dict[str, Any] = torch.load(folder / event.state["checkpoint"], weights_only=True)
    return found


def _wait(mark: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not mark() and process.poll() is None:
        time.sleep(0.005)


def _same(one: Any, other: Any) -> bool:
    """Of nested states."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


@pytest.fixture(name="uncut", scope="module")
def _uncut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes to its end."""
    folder = tmp_path_factory.mktemp("uncut") / "run"
    with launching(_started(_config(steps=8000), folder)) as both:
        said, _ = _ends(both)
    assert both[0].returncode == 0, said
    return folder


@pytest.mark.slow
def test_both_processes_begin_as_what_another_run_learned(uncut: Path, tmp_path: Path) -> None:
    folder, learned = tmp_path / "run", _last(uncut)
    config = _config(**{"from": str(uncut), "steps": 256, "keep": 9})
    with launching(_started(config, folder)) as both:
        said, _ = _ends(both)
    assert both[0].returncode == 0, said  # the last checkpoint is of equal weights too
    begun = torch.load(folder / "checkpoints" / "000001.pt", weights_only=True)
    assert _same(begun["team"], learned["team"])
    pools = [one["others"] for one in (begun, *begun["ranks"])]
    found = [other["versions"] for pool in pools for other in pool if "versions" in other]
    assert len(found) >= 2
    assert all(_same(versions, [learned["team"]]) for versions in found)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_both_and_a_resume_is_exact(
    uncut: Path, tmp_path: Path, victim: int
) -> None:
    config, folders = _config(steps=8000), [uncut, tmp_path / "killed"]
    with launching(_started(config, folders[1])) as both:
        _wait(lambda: len(progress(folders[1])) >= 12, both[0])
        both[victim].send_signal(signal.SIGKILL)
        said, other = _ends(both)
    assert len(progress(folders[1])) < 63, "it was killed before its end"
    if victim:
        assert both[0].returncode == 1
        assert "another process of this launch has ended (" in said
        assert "launched in the same way" in said
    else:
        assert (both[1].returncode, other) == (0, "")
    with pytest.raises(ConfigError, match=r"checkpoint is of 2 processes, and 1 would go on: "):
        resume(folders[1])
    with launching(["orchestry", "resume", str(folders[1]), "--trust"]) as both:
        said, _ = _ends(both)
    assert both[0].returncode == 0, said
    whole, killed = map(_last, folders)
    assert len(whole["ranks"]) == 1
    assert _same(whole, killed)
    timed = ("at", "train/steps_per_sec")
    plain = [[{**row, **dict.fromkeys(timed, 0)} for row in progress(one)] for one in folders]
    assert plain[0] == plain[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_of_both_leaves_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    with launching(_started(_config(steps="100M"), folder)) as both:
        _wait(lambda: len(progress(folder)) >= 3, both[0])
        for process in reversed(both):  # as a terminal or a launcher does
            process.send_signal(number)
        said, other = _ends(both)
    assert (both[0].returncode, both[1].returncode, other) == (130, 0, ""), said
    assert "another process" not in said
    assert load_run(folder).summary.stopped == "interrupted"
    assert _last(folder)["steps"] == progress(folder)[-1]["steps"]


@pytest.mark.slow
def test_a_machine_with_another_task_is_refused(tmp_path: Path) -> None:
    here = _echo(tmp_path / "here")
    there = _echo(tmp_path / "there", ECHO.replace("LENGTH, KINDS = 8", "LENGTH, KINDS = 9"))
    with launching(_run(tmp_path / "run"), at=(here, there)) as both:
        said, other = _ends(both)
    assert both[0].returncode == 2
    assert "process 1 found other contents of task.py of the task than process 0" in said
    assert (both[1].returncode, other) == (0, "")


def _two(monkeypatch: pytest.MonkeyPatch, count: int = 2, rank: int = 0) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(count))
    monkeypatch.setenv("RANK", str(rank))


def test_what_processes_cannot_share_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train({**_config(steps=300, horizon=4), "agents": {}}, tmp_path / "run")
    _two(monkeypatch, 3)
    with pytest.raises(ConfigError, match=r"ppo\.games is 16, and 3 .* multiple of 3"):
        train(_config(), tmp_path / "other")
    _two(monkeypatch, 2, rank=1)
    with pytest.raises(ConfigError, match="process 1 of a launch follows process 0"):
        train(_config(), tmp_path / "other")
    assert not (tmp_path / "other").exists()
    _two(monkeypatch)
    with pytest.raises(ConfigError, match="takes one process"):
        measure(run, {}, 2, print)
    before = run.folder.joinpath("journal.jsonl").read_bytes()
    with pytest.raises(
        ConfigError, match=r"of 1 process, and 2 would go on: resume with --set ranks=1"
    ):
        resume(run.folder)
    assert run.folder.joinpath("journal.jsonl").read_bytes() == before
    (event,) = [e for e in run.events if isinstance(e, Learned)][-1:]
    check_count([event.model_copy(update={"state": {**event.state, "processes": 2}})])


class _Nobody:
    """A player that is only dealt out."""

    act = state = restore = None


def test_all_combinations_of_players_come_up_over_all_processes() -> None:
    plays = {role: {"plays": ["guard", "self"]} for role in ("agent_1", "agent_3")}
    found = arena(validate({**_config(), "agents": plays}), print)

    def itself(seats: tuple[int, ...], games: int, seed: int) -> Script:
        return _Nobody()  # type: ignore[return-value]

    def combinations(players: tuple[Player, ...], games: int) -> list[frozenset[Any]]:
        dealt = [set[Any]() for _ in range(games)]
        for script, seats, where in players:
            assert not isinstance(where, slice)
            for game in where:
                dealt[game].add((*seats, type(script).__name__))
        return [frozenset(one) for one in dealt]

    whole = combinations(found.others(8, itself, "others"), 8)
    assert len(set(whole)) == 4
    shares = [found.others(1, itself, "others", "process", n, first=n) for n in range(8)]
    assert [*itertools.chain(*(combinations(one, 1) for one in shares))] == whole
