"""The live view of a run, on stderr: episodes, reward, dollars, who answers how fast, and ETA.

On a terminal one line is redrawn; a file or a pipe gets the same line from time to time. The first
note comes before anything slow begins.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.text import Text

from orchestry.backends.base import Backend
from orchestry.cli.console import Console, Notes, say
from orchestry.engine.plan import Plan
from orchestry.engine.session import Observer
from orchestry.report.text import counted, duration
from orchestry.store.records import EpisodeRecord

OPENING = "reading the config, loading task and model"
"""The first note of a command that takes a while before its first call."""
WINDOW_S = 20.0
"""Window for tokens per second, in seconds."""
EVERY_S = 20.0
"""Seconds between two lines in a file."""
LOOK_S = 0.5
"""Seconds between two checks for a first answer."""


class Meter:
    """The content of the live line, read from the gateway whenever it is drawn."""

    def __init__(self, plan: Plan, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan, self.done = plan, done
        self._clock, self._began = clock, clock()
        self._pulse = plan.backend.gateway.pulse
        self._calls, self._episodes = float(plan.calls), 0
        self._before = self._share()
        self._sum = self._best = 0.0
        self._count = 0
        self._tokens = deque([(self._began, self._pulse.tokens)])

    def committed(self, record: EpisodeRecord) -> None:
        """Records a finished or failed episode."""
        self.done += 1
        if record.failed:
            return
        self._count += 1
        self._sum += record.mean_reward
        self._best += record.best_of_k
        self._calls += (record.calls - self._calls) / self._count

    @property
    def answered(self) -> bool:
        """Whether this process has had an answer yet."""
        return bool(self._pulse.doing)

    def parts(self) -> list[str]:
        """The line, most important parts first."""
        backend = self.plan.backend
        found = [f"{self.done}/{self.plan.config.episodes}"]
        if self._count and not self.plan.unscored:
            reward, best = (each / self._count for each in (self._sum, self._best))
            found.append(f"reward {reward:.2f} best of k {best:.2f}")
        found.append(spent(backend))
        if backend.gateway.away:
            found.append("waiting for the server")
        else:
            found.append(f"eta {self._eta()}")
            found.append(f"{self._pulse.doing or 'asking'} {self._speed():.0f} tok/s")
        return found + traffic(backend)

    def _share(self) -> float:
        """Answered calls of the run's calls; an upper bound is shown until an episode has ended."""
        return min(1.0, self._pulse.answers / max(1.0, self._calls * self.plan.config.episodes))

    def _eta(self) -> str:
        share = self._share()
        if share <= self._before:
            return "-"
        left = (self._clock() - self._began) * (1 - share) / (share - self._before)
        return duration(left)

    def _speed(self) -> float:
        """Tokens per second over the last WINDOW_S."""
        now, seen = self._clock(), self._tokens
        seen.append((now, self._pulse.tokens))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW_S:
            seen.popleft()
        then, before = seen[0]
        return (self._pulse.tokens - before) / (now - then) if now > then else 0.0


def who(plan: Plan) -> str:
    """Which models answer, and for which agents if these have their own provider."""
    backend = plan.backend
    own = [
        f"{role} on {backend.answering(role).provider.name}/{agent.model}"
        for role, agent in plan.config.agents.items()
        if agent.provider is not None
    ]
    return ", ".join([f"{backend.provider.name}/{backend.provider.model}", *own])


def spent(backend: Backend) -> str:
    """Dollars, and the cap."""
    cap = backend.config.budget.usd
    return f"${backend.gateway.ledger.spent:.3f}" + (f"/{cap:g}" if cap is not None else "")


def traffic(backend: Backend) -> list[str]:
    """Answers from the cache, and calls in flight."""
    hits = sum(row.cache_hits for row in backend.gateway.usage())
    return [*([f"{hits} cached"] if hits else []), f"{backend.gateway.in_flight} open"]


class _Watch:
    """An Observer that draws."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self.console, self.verbose = console, verbose
        self.note = Notes(console)
        self._meter: Meter | None = None
        self._live: Live | Lines | None = None

    def started(self, folder: Path, plan: Plan, done: int) -> None:
        config = plan.config
        self._stop()  # of a run before this one
        self.note.close()
        went_on = f", {counted(done, 'episode')} done before" if done else ""
        problems = counted(len(plan.problems), "problem")
        self.note(f"{config.task} on {who(plan)}, {problems} -> {folder}{went_on}")
        if done >= config.episodes:
            return  # nothing to play, so there is no reward to show
        self._meter = Meter(plan, done)
        self._live = (Live if self.console.is_terminal else Lines)(self.console, self._meter)

    def committed(self, record: EpisodeRecord) -> None:
        if self._meter is not None and self._live is not None:
            self._meter.committed(record)
            self._live.advance()
        if record.failed:
            self.note(f"episode {record.episode} failed and is left out: {record.failed}")
        elif self.verbose:
            tags = " ".join(f"{tag}:{count}" for tag, count in sorted(record.tags().items()))
            say(
                self.console,
                f"episode {record.episode}  {record.problem}  {self._reward(record)}"
                f"{record.calls} calls  ${record.usd:.4f}  {tags}",
            )

    def _reward(self, record: EpisodeRecord) -> str:
        unscored = self._meter is not None and self._meter.plan.unscored
        means = f"reward {record.mean_reward:.3f}  best of k {record.best_of_k:.3f}  "
        return "" if unscored else means

    def close(self) -> None:
        self._stop()
        self.note.close()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class Live:
    """The line on a terminal, after a bar."""

    def __init__(self, console: Console, meter: Meter) -> None:
        self._bar = Progress(BarColumn(bar_width=10), _Line(meter), console=console)
        total = meter.plan.config.episodes
        self._task = self._bar.add_task("episodes", total=total, completed=meter.done)
        self._bar.start()

    def advance(self) -> None:
        """Counts one more episode."""
        self._bar.advance(self._task)

    def stop(self) -> None:
        self._bar.stop()


class _Line(ProgressColumn):
    """The line, cut to the terminal's width."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: Task) -> Text:
        return Text("  ".join(self._meter.parts()), no_wrap=True, overflow="ellipsis")


class LineSource(Protocol):
    """What to show, if there is anything."""

    @property
    def answered(self) -> bool: ...

    def parts(self) -> list[str]: ...


class Lines:
    """The line in a file: after the first answer, then from time to time."""

    def __init__(self, console: Console, meter: LineSource) -> None:
        self._console, self._meter = console, meter
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def advance(self) -> None:
        """Prints nothing at once, because many episodes may end in a second."""

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pause = LOOK_S
        while not self._over.wait(pause):
            if self._meter.answered:
                say(self._console, "  ".join(self._meter.parts()))
                pause = EVERY_S


@contextmanager
def watching(*, verbose: bool) -> Iterator[Observer]:
    """A live view during a run."""
    watch = _Watch(Console(stderr=True), verbose=verbose)
    watch.note(OPENING)
    try:
        yield watch
    finally:
        watch.close()
