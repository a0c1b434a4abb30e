"""The runs of a sweep's trials: their processes, their learning curves, and what they cost."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from orchestry.core.errors import OrchestryError
from orchestry.core.executor import ONE, Executor, Needs
from orchestry.core.files import is_run, json_lines
from orchestry.core.sweep import MeasureConfig
from orchestry.engine.executors import LOCAL
from orchestry.store import journal
from orchestry.store.measurements import last_evaluation
from orchestry.store.records import Summary
from orchestry.store.run import Run, is_held
from orchestry.store.summary import NANO, ending, replay

if TYPE_CHECKING:
    from optuna.trial import Trial

LOOK_S = 1.0
"""Seconds between two looks at a run's curve."""
RUNS_SHARE = 0.75
"""Of what a run and its evaluation may spend, the run's part."""
LOG = "log.txt"
"""In a trial's folder."""
_SMALL = (
    ": if its part of the cap is too small, raise budget_usd, or lower trials, seeds or "
    "measure.episodes"
)
Note = Callable[[str], None]


class Stop(Exception):
    """The sweep can't go on now."""

    def __init__(self, reason: str, told: str) -> None:
        """`reason`: `budget`, `away`, `interrupted` or `failed`."""
        super().__init__(told)
        self.reason, self.told = reason, told


@dataclass(frozen=True, slots=True)
class Asked:
    """A run of a trial."""

    folder: Path
    """The trial's; trial.yaml is its config."""
    seed: int
    usd: float | None = None
    """What run and evaluation may spend from now on; None: no cap."""
    most: float | None = None
    """The cap that the run itself was given, in dollars."""
    trust: bool = False
    """Whether the person passed --trust."""
    raised: bool = False
    """Whether a run that stopped at its budget goes on."""
    executor: Executor = LOCAL
    """Where its commands are started."""
    needs: Needs = ONE
    """What each takes of its machine."""

    @property
    def place(self) -> Path:
        """The run's directory."""
        return self.folder / f"seed-{self.seed}"

    def capped(self, usd: float | None) -> list[str]:
        """The option for a cap in dollars, below the run's own."""
        caps = [cap for cap in (usd, self.most) if cap is not None]
        return [] if usd is None else ["--budget", str(min(caps))]


@dataclass(frozen=True, slots=True)
class Value:
    """What a run came to."""

    value: float | None
    """None: it was pruned."""
    stopped: str = ""
    """What stopped at its budget: `run`, `evaluation` or `run and evaluation`."""


class Curve:
    """A run's learning curve, as a trial reports it."""

    def __init__(self, trial: Trial) -> None:
        self.points = list[tuple[int, float]]()
        self._trial = trial

    def look(self, place: Path) -> bool:
        """Reports what is new; whether the run is to be stopped."""
        known = self.points[-1][0] if self.points else 0
        new = [(at, value) for at, value in curve_of(place) if at > known]
        for at, value in new:
            self.points.append((at, value))
            self._trial.report(value, at)
        return bool(new) and self._trial.should_prune()


def curve_of(place: Path) -> list[tuple[int, float]]:
    """A run's curve so far: after so many episodes the mean reward of the last fifth of them (at
    least five)."""
    path = place / "metrics.jsonl"
    lines = json_lines(path.read_bytes()) if path.exists() else ()
    rewards = [json.loads(line)["mean_leaf_reward"] for _, line in lines]
    return [
        (at, fmean(rewards[max(0, at - max(5, at // 5)) : at])) for at in range(1, len(rewards) + 1)
    ]


def spent_in(place: Path) -> float:
    """Dollars of all runs and evaluations below a folder, as their journals say. Calls that a kill
    cut off count with what was reserved for them."""
    return sum(_paid(path, path.stat().st_size) for path in place.glob("**/journal.jsonl"))


@lru_cache(maxsize=100_000)
def _paid(path: Path, size: int) -> float:
    """A journal only grows, so its size tells whether it was read before."""
    found = replay(journal.read(path))
    return (found.spent + found.reserved) / NANO


def await_writers(folder: Path, note: Note) -> None:
    """Waits for runs below a folder that a killed sweep left behind and that still go on."""
    for lock in sorted(folder.glob("**/run.lock")):
        if is_held(lock):
            note(f"{lock.parent} is still written by another process: waiting for its end")
        while is_held(lock):
            time.sleep(LOOK_S)


@contextmanager
def ends_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, if this is the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    ours = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def play_run(asked: Asked, how: MeasureConfig, split: str, curve: Curve | None) -> Value:
    """Plays a run to its end, or goes on with it, and evaluates it. Raises Stop, and OrchestryError
    if it failed."""
    before = spent_in(asked.place)
    if _train(asked, curve):
        return Value(None)
    summary = Run(asked.place).summary
    if summary.episodes <= summary.failed_episodes:
        raise OrchestryError(f"{asked.place} has no finished episode, so it has no value{_SMALL}")
    left = None if asked.usd is None else max(0.0, asked.usd - (spent_in(asked.place) - before))
    found = _judged(asked, how, split, left)
    parts = (("run", summary.stopped), ("evaluation", found.stopped))
    stopped = " and ".join(name for name, reason in parts if reason == "budget")
    return Value(_value(asked, found), stopped)


def is_whole(asked: Asked, split: str, samples: int | None) -> bool:
    """Whether a run and its evaluation came to their ends."""
    found = last_evaluation(asked.place, split, samples)
    return found is not None and _end(asked.place) == _end(found) == "done"


def _end(place: Path) -> str:
    """Why a run ended; '' if it did not, or is none."""
    return ending(place) if (place / "summary.json").is_file() and is_run(place) else ""


def _train(asked: Asked, curve: Curve | None) -> bool:
    """Plays a run to its end, or goes on with it; whether it was pruned."""
    place = asked.place
    if is_run(place):
        if _end(place) in (("done",) if asked.raised else ("done", "budget")):
            if curve is not None:
                curve.look(place)
            return False
        args = ["resume", str(place)]
    else:
        args = ["run", "--config", str(asked.folder / "trial.yaml"), "--seed", str(asked.seed)]
        args += ["--run-dir", str(place)]
    own = place / "journal.jsonl"
    paid = _paid(own, own.stat().st_size) if own.exists() else 0.0
    args += asked.capped(None if asked.usd is None else asked.usd * RUNS_SHARE + paid)
    code, pruned = _process(args, asked, curve)
    if not pruned:
        _check(code, asked)
    return pruned


def _judged(asked: Asked, how: MeasureConfig, split: str, left: float | None) -> Summary:
    """The summary of a finished run's evaluation, which may spend what is left."""
    args = ["evaluate", str(asked.place), "--split", split, "--no-compare"]
    args += [] if how.samples is None else ["--samples", str(how.samples)]
    args += [] if how.episodes is None else ["--episodes", str(how.episodes)]
    before = last_evaluation(asked.place, split, how.samples)
    paid = 0.0 if before is None else spent_in(before)
    args += asked.capped(None if left is None else left + paid)
    _check(_process(args, asked, None)[0], asked)
    found = last_evaluation(asked.place, split, how.samples)
    if found is None:
        raise OrchestryError(
            f"{asked.place} has no evaluation on {split}: see {asked.folder / LOG}"
        )
    return Run(found).summary


def _value(asked: Asked, found: Summary) -> float:
    """What an evaluation measured. Raises OrchestryError for no number."""
    value = found.reward
    if value is None:
        raise OrchestryError(f"the evaluation of {asked.place} has no finished episode{_SMALL}")
    if not isfinite(value):
        raise OrchestryError(f"the evaluation of {asked.place} has the mean {value}: no number")
    return value


def _check(code: int, asked: Asked) -> None:
    """Raises Stop or OrchestryError for a command that did not come to its end or its budget."""
    if code == 130:
        raise Stop("interrupted", "interrupted: the same command goes on")
    if code == 4:
        raise Stop("away", "the server stayed away: the same command goes on")
    if code not in (0, 3):
        raise OrchestryError(_last_line(asked.folder / LOG))


def _process(args: Sequence[str], asked: Asked, curve: Curve | None) -> tuple[int, bool]:
    """Runs a command of ours, and stops it in order if its curve says so; its exit code, and
    whether it was stopped. What it says is kept in the trial's log."""
    pruned = interrupted = False
    job = asked.executor.start(
        [*args, *(["--trust"] * asked.trust)], asked.folder / LOG, asked.needs
    )
    try:
        while (code := job.poll()) is None:
            try:
                if curve is not None and not pruned and curve.look(asked.place):
                    pruned = True
                    job.interrupt()
                job.wait(LOOK_S)
            except KeyboardInterrupt:
                interrupted = True
                job.interrupt()
    finally:
        job.close()
    if interrupted:
        return 130, False
    if curve is not None and not pruned:
        curve.look(asked.place)
    return code, pruned


def _last_line(log: Path) -> str:
    """What a command said last."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("orchestry: ") if lines else "it said nothing"
