"""The live view of a run, on stderr: a bar with reward, best, dollars, cache hits and ETA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from orchestry.analysis.words import counted
from orchestry.backends.base import Backend
from orchestry.cli.notes import Notes, say
from orchestry.records import EpisodeRecord
from orchestry.session import Observer, Plan


class Watch:
    """An Observer that draws; what it shows is read from the gateway when the screen refreshes."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self.console, self.verbose = console, verbose
        self.note = Notes(console)
        self.progress: Progress | None = None
        self._bar = TaskID(0)
        self._sum = self._best = 0.0
        self._count = 0

    def started(self, folder: Path, plan: Plan, done: int) -> None:
        provider, config = plan.backend.provider, plan.config
        self._stop()  # of a run before this one
        self._count, self._sum, self._best = 0, 0.0, 0.0
        went_on = f", {counted(done, 'episode')} done before" if done else ""
        self.note(f"{config.task} on {provider.name}/{provider.model} -> {folder}{went_on}")
        if done >= config.episodes:
            return  # nothing to play: a bar would show no reward
        self.progress = Progress(
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("reward {task.fields[reward]} best {task.fields[best]}"),
            Spending(plan.backend),
            TextColumn("eta"),
            TimeRemainingColumn(compact=True),
            console=self.console,
        )
        self._bar = self.progress.add_task(
            "episodes", total=config.episodes, completed=done, reward="-", best="-"
        )
        self.progress.start()

    def committed(self, record: EpisodeRecord) -> None:
        if record.failed:
            self.note(f"episode {record.episode} failed and is left out: {record.failed}")
            if self.progress:
                self.progress.advance(self._bar)
            return
        self._count += 1
        self._sum += record.reward
        self._best = max(self._best, record.reward)
        if self.progress:
            mean = f"{self._sum / self._count:.2f}"
            self.progress.update(self._bar, advance=1, reward=mean, best=f"{self._best:.2f}")
        if self.verbose:
            tags = " ".join(f"{tag}:{count}" for tag, count in sorted(record.tags().items()))
            say(
                self.console,
                f"episode {record.episode}  {record.problem}  reward {record.reward:.3f}  "
                f"{record.calls} calls  ${record.usd:.4f}  {tags}",
            )

    def close(self) -> None:
        self._stop()
        self.note.close()

    def _stop(self) -> None:
        if self.progress:
            self.progress.stop()


class Spending(ProgressColumn):
    """Dollars of the cap, answers from the cache, and calls under way."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.backend = backend

    def render(self, task: Task) -> Text:
        ledger, cap = self.backend.gateway.ledger, self.backend.config.budget.usd
        of = f"/{cap:g}" if cap is not None else ""
        hits = sum(row.cache_hits for row in self.backend.gateway.usage())
        flying = self.backend.gateway.in_flight
        return Text(f"${ledger.spent:.3f}{of} {hits} cached {flying} open", style="cyan")


@contextmanager
def watching(*, verbose: bool) -> Iterator[Observer]:
    """A live view for the time of a run."""
    watch = Watch(Console(stderr=True), verbose=verbose)
    try:
        yield watch
    finally:
        watch.close()
