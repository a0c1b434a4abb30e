"""The runs of a sweep's trials: their processes, their learning curves, and what they cost."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self, TypeVar

from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.executor import ONE, Executor, Lost, Needs
from orchestry.core.files import is_run, json_lines
from orchestry.engine.executors import LOCAL
from orchestry.engine.games import last_checkpoint
from orchestry.ext.sweep.settings import MeasureConfig
from orchestry.store import journal
from orchestry.store.games import kept
from orchestry.store.measurements import last_evaluation
from orchestry.store.progress import MEAN, PROGRESS, progress
from orchestry.store.records import Summary
from orchestry.store.run import Run, is_held
from orchestry.store.summary import NANO, ending, replay

if TYPE_CHECKING:
    from optuna.trial import Trial

LOOK_S = 1.0
"""Seconds between two looks at a run's curve."""
RUNS_SHARE = 0.75
"""Of what a run and its evaluation may spend, the run's part."""
LOSSES = 4
"""So often a command is played, if its machine is lost each time, before its trial fails."""
GRACE_S = 5.0
"""After a loss: a process that lost its cluster ends by itself, or holds its run's lock by now."""
MOST = 1024
"""Most trials at once."""
LOG = "log.txt"
"""In a trial's folder."""
_SMALL = (
    ": if its part of the cap is too small, raise budget_usd, or lower trials, seeds or "
    "measure.episodes"
)
Note = Callable[[str], None]
T = TypeVar("T")


class Stop(Exception):
    """The sweep can't go on now."""

    def __init__(self, reason: str, told: str) -> None:
        """`reason`: `budget`, `away`, `interrupted` or `failed`."""
        super().__init__(told)
        self.reason, self.told = reason, told


def interrupted() -> Stop:
    """What ends a sweep after Ctrl-C."""
    return Stop("interrupted", "interrupted: the same command goes on")


class Interrupts:
    """Ctrl-C, SIGTERM and SIGHUP. While runs go on, each of them is told of each signal; else it
    raises KeyboardInterrupt. In another thread than the main one, signals stay as they are."""

    def __init__(self) -> None:
        self.count = 0
        self._passed_on = False
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
        usual = (signal.SIG_DFL, signal.default_int_handler)
        # Those of a program around this one stay; Ray sets one when it is opened.
        self._ours = [number for number in numbers if signal.getsignal(number) in usual]
        self._before = dict[signal.Signals, Any]()

    def __enter__(self) -> Self:
        self.count = 0
        self._before = {number: signal.getsignal(number) for number in self._ours}
        for number in self._ours:
            signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: object) -> None:
        self.count += 1
        if not self._passed_on:
            raise KeyboardInterrupt

    @contextmanager
    def passed_on(self) -> Iterator[None]:
        """Within the block, runs go on."""
        self._passed_on = True
        try:
            yield
        finally:
            self._passed_on = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A run of a trial."""

    folder: Path
    """The trial's; trial.yaml is its config."""
    seed: int
    usd: float | None = None
    """What run and evaluation may spend in all; None: no cap."""
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
    games: bool = False
    """Whether it is one of backend ppo: it has no budget, and is evaluated in new games."""
    interrupts: Interrupts = field(default_factory=Interrupts, compare=False)
    """Signals that its commands are told of."""
    note: Note = lambda text: None

    @property
    def place(self) -> Path:
        """The run's directory."""
        return self.folder / f"seed-{self.seed}"

    def capped(self, usd: float | None) -> list[str]:
        """The option for a cap in dollars, below the run's own."""
        caps = [cap for cap in (usd, self.most) if cap is not None]
        return [] if usd is None or self.games else ["--budget", str(min(caps))]


@dataclass(frozen=True, slots=True)
class Value:
    """What a run came to."""

    value: float | None
    """None: it was pruned."""
    stopped: str = ""
    """What stopped at its budget: `run`, `evaluation` or `run and evaluation`."""


class Curve:
    """A run's learning curve, as a trial reports it."""

    def __init__(self, trial: Trial, told: Sequence[int] = ()) -> None:
        """`told`: the episodes that were reported before the trial was cut off."""
        self.points = list[tuple[int, float]]()
        self._trial, self._told = trial, frozenset(told)

    def look(self, place: Path) -> bool:
        """Reports what is new; whether the run is to be stopped."""
        known = self.points[-1][0] if self.points else 0
        new = [(at, value) for at, value in curve_of(place) if at > known]
        for at, value in new:
            self.points.append((at, value))
            if at not in self._told:
                self._trial.report(value, at)
        return bool(new) and self._trial.should_prune()


def curve_of(place: Path) -> list[tuple[int, float]]:
    """A run's curve so far: after so many episodes the mean reward of the last fifth of them (at
    least five); of backend ppo, after so many steps the mean return of the last 100 games."""
    if (place / PROGRESS).exists():
        return [(int(row["steps"]), row[MEAN]) for row in progress(place) if MEAN in row]
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


def await_writers(folder: Path, note: Note, interrupts: Interrupts) -> None:
    """Waits for runs below a folder that a killed sweep left behind and that still go on. Raises
    Stop if it is interrupted."""
    for lock in sorted(folder.glob("**/run.lock")):
        if is_held(lock):
            note(f"{lock.parent} is still written by another process: waiting for its end")
        while is_held(lock):
            if interrupts.count:
                raise interrupted()
            time.sleep(LOOK_S)


def play_all(
    propose: Callable[[], Callable[[], T] | None],
    places: Callable[[], int],
    ended: Callable[[T], None],
    interrupts: Interrupts,
) -> None:
    """Plays work in threads, as much at once as there are places: `propose` gives the next piece
    when one is free (None: there is none now), and `ended` takes its result, both in this thread.

    After an error or an interrupt all others are interrupted, and end in order, before it is
    raised. If the cap has nothing left, those that go on are played to their ends first."""
    going, errors = set[Future[T]](), list[BaseException]()
    with ThreadPoolExecutor(MOST) as pool, interrupts.passed_on():
        try:
            while True:
                _fill(going, pool, propose, places, interrupts)
                if not going:
                    return
                for one in wait(going, return_when=FIRST_COMPLETED).done:
                    going.remove(one)
                    ended(one.result())
        except BaseException as error:
            errors.append(error)
            interrupts.count += 1
            for one in wait(going).done:
                try:
                    ended(one.result())
                except BaseException as other:
                    errors.append(other)
    odd = (e for e in errors if not (isinstance(e, Stop) and e.reason == "interrupted"))
    raise next(odd, errors[0])


def _fill(
    going: set[Future[T]],
    pool: ThreadPoolExecutor,
    propose: Callable[[], Callable[[], T] | None],
    places: Callable[[], int],
    interrupts: Interrupts,
) -> None:
    """Raises Stop."""
    while len(going) < min(MOST, places()):
        if interrupts.count:
            raise interrupted()
        try:
            work = propose()
        except Stop as stop:
            if stop.reason == "budget" and going:  # dollars come back when one ends
                return
            raise
        if work is None:
            return
        going.add(pool.submit(work))


def play_run(asked: Asked, how: MeasureConfig, split: str, curve: Curve | None) -> Value:
    """Plays a run to its end, or goes on with it, and evaluates it. Raises Stop, and OrchestryError
    if it failed."""
    if _kept(asked, lambda: _train(asked, curve)):
        return Value(None)
    if asked.games:
        return Value(_kept(asked, lambda: _played(asked, how.episodes)))
    summary = Run(asked.place).summary
    if summary.episodes <= summary.failed_episodes:
        raise OrchestryError(f"{asked.place} has no finished episode, so it has no value{_SMALL}")
    found = _kept(asked, lambda: _judged(asked, how, split))
    parts = (("run", summary.stopped), ("evaluation", found.stopped))
    stopped = " and ".join(name for name, reason in parts if reason == "budget")
    return Value(_value(asked, found), stopped)


def _kept(asked: Asked, play: Callable[[], T]) -> T:
    """Plays a command, and goes on with its run where the machine that held it was lost."""
    found: Lost | None = None
    for left in reversed(range(LOSSES)):
        try:
            return play()
        except Lost as error:
            found = error
            # Its process may live, and not hold the run's lock yet.
            time.sleep(GRACE_S)
            await_writers(asked.place, asked.note, asked.interrupts)
            if left:
                asked.note(f"{asked.place}: {error}: going on with it elsewhere")
    raise OrchestryError(f"{asked.place} was lost {LOSSES} times in a row: {found}")


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
    args += asked.capped(None if asked.usd is None else asked.usd * RUNS_SHARE)
    code, pruned = _process(args, asked, curve)
    if not pruned:
        _check(code, asked)
    return pruned


def _judged(asked: Asked, how: MeasureConfig, split: str) -> Summary:
    """The summary of a finished run's evaluation, which may spend what its run left."""
    args = ["evaluate", str(asked.place), "--split", split, "--no-compare"]
    args += [] if how.samples is None else ["--samples", str(how.samples)]
    args += [] if how.episodes is None else ["--episodes", str(how.episodes)]
    before = last_evaluation(asked.place, split, how.samples)
    paid = 0.0 if before is None else spent_in(before)
    left = None if asked.usd is None else max(0.0, asked.usd - spent_in(asked.place))
    args += asked.capped(None if left is None else left + paid)
    _check(_process(args, asked, None)[0], asked)
    found = last_evaluation(asked.place, split, how.samples)
    if found is None:
        raise OrchestryError(
            f"{asked.place} has no evaluation on {split}: see {asked.folder / LOG}"
        )
    return Run(found).summary


def _played(asked: Asked, games: int | None) -> float:
    """The learned team's mean return in new games, of backend ppo. An evaluation of the same
    checkpoint counts if it is there."""

    from orchestry.engine.neural import LEARNED

    def found() -> float | None:
        run = Run(asked.place)
        last, own = last_checkpoint(run.events), run.config.get("options") or {}
        fits = [
            one.teams[LEARNED].returns.mean
            for one in kept(asked.place)[0]
            if last is not None
            and one.checkpoint == last.state["digest"]
            and (one.options, one.changes) == (own, {})
            and games in (None, one.games)
        ]
        return fits[-1] if fits else None

    if found() is None:
        args = ["evaluate", str(asked.place)]
        args += [] if games is None else ["--episodes", str(games)]
        _check(_process(args, asked, None)[0], asked)
    if (value := found()) is None:
        raise OrchestryError(f"{asked.place} has no evaluation: see {asked.folder / LOG}")
    return value


def _value(asked: Asked, found: Summary) -> float:
    """What an evaluation measured. Raises OrchestryError for no number."""
    value = found.objective
    if value is None:
        raise OrchestryError(f"the evaluation of {asked.place} has no finished episode{_SMALL}")
    if not isfinite(value):
        raise OrchestryError(f"the evaluation of {asked.place} has the mean {value}: no number")
    return value


def _check(code: int, asked: Asked) -> None:
    """Raises Stop or OrchestryError for a command that did not come to its end or its budget."""
    if code == 130:
        raise interrupted()
    if code == 4:
        raise Stop("away", "the server stayed away: the same command goes on")
    if code not in (0, 3):
        raise OrchestryError(_last_line(asked.folder / LOG))


def _process(args: Sequence[str], asked: Asked, curve: Curve | None) -> tuple[int, bool]:
    """Runs a command of ours, and stops it in order if its curve says so; its exit code, and
    whether it was stopped. What it says is kept in the trial's log. Raises Lost."""
    pruned, told, heard = False, 0, asked.interrupts
    if heard.count:
        raise interrupted()
    args = [*args, *(["--trust"] * asked.trust)]
    try:
        job = asked.executor.start(args, asked.folder / LOG, asked.needs)
    except ConfigError as error:  # no room, or another version there: it is not the trial's fault
        raise Stop("failed", str(error)) from None
    try:
        while (code := job.poll()) is None:
            while told < heard.count:
                told += 1
                job.interrupt()
            if curve is not None and not pruned and curve.look(asked.place):
                pruned = True
                job.interrupt()
            job.wait(LOOK_S)
    finally:
        job.close()
    if told:
        return 130, False
    if curve is not None and not pruned:
        curve.look(asked.place)
    return code, pruned


def _last_line(log: Path) -> str:
    """What a command said last."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("orchestry: ") if lines else "it said nothing"
