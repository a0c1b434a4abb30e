"""Runs of a sweep: several at once, interrupted, and lost with their machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestry.core.errors import OrchestryError
from orchestry.core.executor import Job, Lost, Needs
from orchestry.engine.executors import LOCAL
from orchestry.ext.sweep.report import read_sweep as read_found
from orchestry.ext.sweep.settings import MeasureConfig, read_sweep
from orchestry.ext.sweep.sweep import Sweep
from orchestry.ext.sweep.trials import Asked, Interrupts, Stop, await_writers, play_all, play_run
from tests.ext.sweep.test_sweep import RUN, journal_of, sweep_file


def played(works: Sequence[Callable[[], Any]], places: int, heard: Interrupts) -> list[Any]:
    """All results, in the order in which they came."""
    found, todo = list[Any](), [*works]
    play_all(lambda: todo.pop(0) if todo else None, lambda: places, found.append, heard)
    return found


def until_interrupted(heard: Interrupts, began: threading.Event) -> Callable[[], None]:
    """A run that ends when it is interrupted."""

    def work() -> None:
        began.set()
        while not heard.count:
            threading.Event().wait(0.01)
        raise Stop("interrupted", "in order")

    return work


def test_one_place_plays_one_after_the_other() -> None:
    going = threading.Lock()

    def work(number: int) -> int:
        assert going.acquire(blocking=False)
        going.release()
        return number

    works = [lambda n=n: work(n) for n in range(9)]
    assert played(works, 1, Interrupts()) == [*range(9)]


def test_as_many_are_played_at_once_as_there_are_places() -> None:
    gate = threading.Barrier(3, timeout=60)  # each waits for two others
    assert sorted(played([lambda: gate.wait() >= 0] * 6, 3, Interrupts())) == [True] * 6


def test_an_error_ends_the_others_in_order_and_is_raised() -> None:
    heard, began = Interrupts(), threading.Event()

    def wrong() -> None:
        began.wait(60)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        played([until_interrupted(heard, began), wrong], 2, heard)
    assert heard.count == 1
    assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPool")]


def test_what_ends_after_an_error_is_told_too() -> None:
    heard, found = Interrupts(), list[int]()

    def late() -> int:
        while not heard.count:
            threading.Event().wait(0.01)
        return 7

    def wrong() -> int:
        raise Stop("away", "the server stayed away")

    todo = [late, wrong]
    with pytest.raises(Stop, match="stayed away"):
        play_all(lambda: todo.pop(0) if todo else None, lambda: 2, found.append, heard)
    assert found == [7]


def test_a_signal_reaches_the_runs_and_ends_the_sweep() -> None:
    began = threading.Event()
    with Interrupts() as heard:

        def send() -> int:
            began.wait(60)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            return 1

        with pytest.raises(Stop) as stop:
            played([until_interrupted(heard, began), send, send, send], 2, heard)
        assert stop.value.reason == "interrupted"
        assert heard.count >= 2
        with pytest.raises(KeyboardInterrupt):  # nothing goes on
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_spent_cap_lets_the_others_end_first() -> None:
    """What they leave may be enough for one more."""
    heard, asked, found = Interrupts(), list[str](), list[int]()
    gate = threading.Event()

    def propose() -> Callable[[], int] | None:
        asked.append("?")
        if len(asked) == 2:
            gate.set()
            raise Stop("budget", "the cap is spent or reserved")
        return (lambda: 0 if gate.wait(60) else 1) if len(asked) < 4 else None

    play_all(propose, lambda: 2, found.append, heard)
    assert (found, heard.count) == ([0, 0], 0)


# --- lost machines --------------------------------------------------------------------------------


class Losing:
    """An executor that loses its first jobs: once they have an answer, their machine is gone."""

    def __init__(self, losses: int, folder: Path, alive: bool = False) -> None:
        self.losses, self.folder, self.alive = losses, folder, alive
        self.started, self.jobs = list[str](), list[Any]()

    def at_once(self, needs: Needs) -> int:
        return 1

    def start(self, args: Sequence[str], log: Path, needs: Needs) -> Job:
        self.started.append(args[0])
        job = LOCAL.start(args, log, needs)
        self.jobs.append(job)
        self.losses -= 1
        return job if self.losses < 0 else Gone(job, self.folder, self.alive)


class Gone:
    """A job that is lost; `alive`: only the way to it, and it plays on."""

    def __init__(self, job: Any, folder: Path, alive: bool) -> None:
        self._job, self._folder, self._alive = job, folder, alive

    def poll(self) -> int | None:
        if any(e.kind == "answered" for e in journal_of(self._folder)):
            if not self._alive:
                self._job._process.kill()
                self._job._process.wait()
            raise Lost("the cluster lost a process")
        assert self._job.poll() is None
        return None

    def wait(self, seconds: float) -> None:
        self._job.wait(0.1)

    def interrupt(self) -> None:
        self._job.interrupt()

    def close(self) -> None:
        """Nothing reaches it."""


def lost(tmp_path: Path, executor: Losing, **changes: Any) -> Sweep:
    """A sweep of one trial whose runs that executor starts."""
    config = read_sweep(sweep_file(tmp_path / "s.yaml", trials=1, **changes))
    sweep = Sweep(config, tmp_path / "sweep", print, trust=True)
    sweep.folder.mkdir()
    sweep.executor = executor  # type: ignore[assignment]
    sweep.open()
    return sweep


@pytest.mark.slow
@pytest.mark.parametrize("alive", [False, True])
def test_a_run_whose_machine_was_lost_goes_on(tmp_path: Path, alive: bool) -> None:
    """It is resumed in its folder; a writer that still lives is waited for first."""
    run = {**RUN, "provider": {"name": "fake", "fake": {"latency_s": 0.2}}}
    place = tmp_path / "sweep" / "trial-0000" / "seed-0"
    executor = Losing(1, place, alive)
    sweep = lost(tmp_path, executor, run=run)
    assert sweep._ended() == "done"
    assert {job._process.wait(60) for job in executor.jobs} == ({0} if alive else {0, -9})
    (trial,) = read_found(tmp_path / "sweep").trials
    assert trial["state"] == "complete"
    assert executor.started == (["run", "evaluate"] if alive else ["run", "resume", "evaluate"])
    opened = [event for event in journal_of(place) if event.kind == "opened"]
    assert len(opened) == (1 if alive else 2)


class Never(Losing):
    """An executor all of whose machines are gone."""

    def start(self, args: Sequence[str], log: Path, needs: Needs) -> Job:
        self.started.append(args[0])
        raise Lost("the cluster lost a process")


def test_a_run_that_is_lost_again_and_again_fails_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestry.ext.sweep.trials.GRACE_S", 0.0)
    executor: Any = Never(9, tmp_path)
    (tmp_path / "trial.yaml").write_text(yaml.safe_dump(RUN))
    told = list[str]()
    asked = Asked(tmp_path, 0, executor=executor, note=told.append)
    with pytest.raises(OrchestryError, match="lost 4 times in a row: the cluster lost"):
        play_run(asked, MeasureConfig(), "dev", None)
    assert (executor.started, len(told)) == (["run"] * 4, 3)


def test_who_waits_for_a_writer_can_be_interrupted(tmp_path: Path) -> None:
    import fcntl

    heard = Interrupts()
    heard.count = 1
    with (tmp_path / "run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Stop, match="interrupted"):
            await_writers(tmp_path, print, heard)
