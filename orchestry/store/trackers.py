"""TensorBoard and W&B: copies of a run's figures; nothing reads them back.

Each process shows the whole run from the first episode on, from the same records as metrics.jsonl.
So a resume repeats no step, discarded episodes disappear, and rows lost in a kill come back. Each
mirror has its own thread; if it fails, the user is told once and the run continues.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from orchestry.core.config import RunConfig, TrackersConfig
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, reason
from orchestry.core.resolve import leaves
from orchestry.store.journal import Committed, Evaluated, Learned, Opened
from orchestry.store.progress import GPU, PACE, RECENT
from orchestry.store.records import EpisodeRecord, Metrics
from orchestry.store.run import Mirror, Store

WAIT_S = 30.0
"""Seconds that the end of a run waits for a slow mirror."""


@dataclass(frozen=True, slots=True)
class TrackerRow:
    """Named figures at one point of the run."""

    episode: int
    """The x value: the episode, or the last episode that an update learned from."""
    at: float
    """Unix time in seconds."""
    figures: Mapping[str, float]


Write = Callable[[TrackerRow], None]


def check_trackers(config: TrackersConfig, *, login: bool = True) -> None:
    """Raises ConfigError for a package that is missing, and with `login` for W&B's login."""
    for package, wanted in (("tensorboard", config.tensorboard), ("wandb", config.wandb != "off")):
        found = find_spec(package)
        if wanted and (found is None or found.origin is None):  # W&B's own folders have its name
            raise ConfigError(
                f"trackers.{package} needs the package {package}, not installed here: "
                f"{install(package)}, or leave trackers.{package} out"
            )
    if login and config.wandb == "online":
        _check_login()


def open_trackers(
    config: RunConfig, store: Store, every: int | None, note: Callable[[str], None]
) -> list[Mirror]:
    """Opens the mirrors of a config and shows them everything in the store so far.

    `every`: episodes per update; None: nothing is learned. The journal must have its first event.
    """
    times = {event.episode: event.at for event in store.events if isinstance(event, Committed)}
    begun = [event.at for event in store.events if isinstance(event, Opened)] + [time.time()]
    trackers = list[Mirror]()
    for name, open_ in _asked_for(config, store.folder).items():
        tracker = Tracker(name, open_, every, note, begun)
        for event in store.events:
            if isinstance(event, Learned):
                tracker.learned(event)
            elif isinstance(event, Evaluated):
                tracker.evaluated(event)
        for number in sorted(store.episodes):
            tracker.committed(store.episodes[number], times[number])
        trackers.append(tracker)
    return trackers


def show_rows(
    config: RunConfig, folder: Path, rows: Iterable[TrackerRow], note: Callable[[str], None]
) -> list[Tracker]:
    """Opens the trackers of a config for a run without episodes, and shows its rows so far."""
    found = [Tracker(name, open_, None, note) for name, open_ in _asked_for(config, folder).items()]
    seen = [*rows]
    for tracker in found:
        tracker.show(seen)
    return found


def _asked_for(
    config: RunConfig, folder: Path
) -> dict[str, Callable[[], AbstractContextManager[Write]]]:
    """By name, what opens each tracker of a config."""
    shown, found = config.trackers, dict[str, Callable[[], AbstractContextManager[Write]]]()
    if shown.tensorboard:
        found["TensorBoard"] = partial(_tensorboard, folder, config)
    if shown.wandb != "off":
        found["W&B"] = partial(_wandb, folder, config)
    return found


class Rows:
    """The rows of a mirror, in an order that does not depend on kills, resumes or concurrency.

    Episodes come by number. Each update, and then its evaluation, comes after the last episode that
    it learned from, and before the next one. A row that arrives early waits. So the n-th row of a
    run is the same in all its processes.
    """

    def __init__(self, every: int | None, begun: Sequence[float] = ()) -> None:
        """`begun`: when each process of the run began, in Unix seconds."""
        self._every, self._begun = every, begun
        self._since: float | None = None
        self._recent = deque[tuple[int, float]](maxlen=RECENT)
        """Steps and seconds of the last episodes."""
        self._metrics = Metrics()
        self._tags = set[str]()
        self._next = self._learned = 0
        self._episodes: dict[int, tuple[EpisodeRecord, float]] = {}
        self._updates: dict[int, Learned] = {}
        self._evaluations: dict[int, Evaluated] = {}

    def episode(self, record: EpisodeRecord, at: float) -> Iterator[TrackerRow]:
        """The rows that can be shown after this episode."""
        self._episodes[record.episode] = record, at
        return self._ready()

    def update(self, event: Learned) -> Iterator[TrackerRow]:
        """The rows that can be shown after this update."""
        self._updates[event.update] = event
        return self._ready()

    def evaluation(self, event: Evaluated) -> Iterator[TrackerRow]:
        """The rows that can be shown after this evaluation on dev."""
        self._evaluations[event.update] = event
        return self._ready()

    def _ready(self) -> Iterator[TrackerRow]:
        while True:
            if (row := self._due()) is not None:
                yield row
            elif self._next in self._episodes and not self._learns:
                record, at = self._episodes.pop(self._next)
                self._next += 1
                if not record.failed:
                    figures = {**self._figures(record), **self._speed(record, at)}
                    yield TrackerRow(record.episode, at, figures)
            else:
                return

    @property
    def _learns(self) -> bool:
        """Whether the update before the next episode is still being made."""
        return self._every is not None and self._learned < self._next // self._every

    def _due(self) -> TrackerRow | None:
        """The update from the episodes so far, then its evaluation, each once."""
        if self._every is None or self._next % self._every:
            return None
        number, last = self._next // self._every, max(0, self._next - 1)
        if (update := self._updates.pop(number, None)) is not None:
            self._learned = number
            own = {key: value for key, value in update.state.items() if key != GPU}
            gpu = dict(_numbers(GPU, update.state.get(GPU, {})))
            return TrackerRow(last, update.at, dict(_numbers("learn", own)) | gpu)
        if (dev := self._evaluations.pop(number, None)) is not None:
            rates = {f"dev/rate/{tag}": share for tag, share in dev.tags.items()}
            return TrackerRow(last, dev.at, {"dev/reward": dev.reward, **rates})
        return None

    def _figures(self, record: EpisodeRecord) -> dict[str, float]:
        """A row of metrics.jsonl, with shares of the evaluated trajectories for counts of tags, and
        figures under the names that backend ppo has."""
        row, tags = self._metrics.row(record), record.tags()
        self._tags |= tags.keys()
        shares = {f"rate/{tag}": tags[tag] / row["leaves"] for tag in sorted(self._tags)}
        kept = {key: x for key, x in row.items() if key != "episode" and key[:4] != "tag/"}
        alike = {"episode/reward": row["reward"], "train/total_episodes": self._metrics.count}
        return kept | shares | alike

    def _speed(self, record: EpisodeRecord, at: float) -> dict[str, float]:
        """Steps per second over the last episodes, updates included; the time between two processes
        of a run is left out."""
        known = [began for began in self._begun if began <= at]
        since = max(known if self._since is None else [self._since, *known], default=at)
        self._since = max(since, at)
        self._recent.append((record.steps(), max(0.0, at - since)))
        steps, seconds = map(sum, zip(*self._recent, strict=True))
        return {PACE: steps / seconds} if seconds else {}


class Tracker:
    """One mirror with its own thread; its methods never wait or raise."""

    def __init__(
        self,
        name: str,
        open_: Callable[[], AbstractContextManager[Write]],
        every: int | None,
        note: Callable[[str], None],
        begun: Sequence[float] = (),
    ) -> None:
        self._name, self._open, self._note = name, open_, note
        self._rows = Rows(every, begun)
        self._queue = SimpleQueue[TrackerRow | None]()
        self._failure: Exception | None = None
        self._over = False
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def committed(self, record: EpisodeRecord, at: float) -> None:
        """See Mirror."""
        self.show(self._rows.episode(record, at))

    def learned(self, event: Learned) -> None:
        """See Mirror."""
        self.show(self._rows.update(event))

    def evaluated(self, event: Evaluated) -> None:
        """See Mirror."""
        self.show(self._rows.evaluation(event))

    def close(self) -> None:
        """See Mirror; waits for remaining rows, at most WAIT_S."""
        self._queue.put(None)
        self._thread.join(WAIT_S)
        if self._thread.is_alive():
            self._give_up(f"has not taken everything within {WAIT_S:.0f} s")
        elif self._failure:
            self._give_up(f"failed ({reason(self._failure)})")

    def show(self, rows: Iterable[TrackerRow]) -> None:
        """Shows these rows."""
        for row in rows:
            self._queue.put(row)
        if self._failure:
            self._give_up(f"failed ({reason(self._failure)})")

    def _give_up(self, why: str) -> None:
        """Reported once, from the run's own thread."""
        if not self._over:
            self._over = True
            self._note(
                f"{self._name} {why} and shows no more of this run: its folder has everything, and "
                "the next `orchestry resume` shows it"
            )

    def _serve(self) -> None:
        try:
            with self._open() as write:
                for row in iter(self._queue.get, None):
                    write(row)
        except Exception as error:
            self._failure = error


@contextmanager
def _tensorboard(folder: Path, config: RunConfig) -> Iterator[Write]:
    """One event file in the run's folder `tensorboard`, flushed row by row."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    place = folder / "tensorboard"
    for old in place.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(place))

    def write(row: TrackerRow) -> None:
        values = [Summary.Value(tag=tag, simple_value=x) for tag, x in row.figures.items()]
        event = Event(wall_time=row.at, step=row.episode, summary=Summary(value=values))
        writer.add_event(event)
        writer.flush()

    try:
        # a viewer that read the old file drops its steps
        writer.add_event(Event(step=0, session_log=SessionLog(status=SessionLog.START)))
        settings = leaves(config.model_dump(mode="json", by_alias=True))
        hparams = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in settings
        }
        writer.add_event(Event(summary=hparams_pb(hparams, trial_id=folder.name)))
        writer.flush()
        yield write
    finally:
        writer.close()


@contextmanager
def _wandb(folder: Path, config: RunConfig) -> Iterator[Write]:
    """One W&B run with a fixed id; rows that its server already has are not sent again.

    Offline there is no server to ask, and `wandb sync` of a second part replaces the first (wandb
    issue 3841). So one part is kept, with all rows.
    """
    import wandb

    shown = config.trackers
    if shown.wandb == "offline":
        for old in (folder / "wandb").glob("offline-run-*"):
            shutil.rmtree(old)
    run = wandb.init(
        dir=str(folder),
        mode="offline" if shown.wandb == "offline" else "online",
        id=run_id(folder),
        resume="allow" if shown.wandb == "online" else None,
        project=shown.project,
        entity=shown.entity,
        name=shown.name or folder.resolve().name,
        tags=shown.tags,
        config=config.model_dump(mode="json", by_alias=True),
        settings=_settings(),
    )
    known = run.starting_step

    def write(row: TrackerRow) -> None:
        nonlocal known
        if known:
            known -= 1
        else:
            run.log({"episode": row.episode, "_timestamp": row.at, **row.figures})

    try:
        run.define_metric("*", step_metric="episode")
        yield write
    finally:
        run.finish()


def run_id(folder: Path) -> str:
    """A run's id at W&B: a digest of the journal's first line, which holds a time. It is the same
    in all processes, also after the run's folder was moved."""
    with (folder / "journal.jsonl").open("rb") as file:
        return hashlib.sha256(file.readline()).hexdigest()[:16]


def _settings() -> Any:
    """W&B gets figures, config, name, host and machine load; no terminal output, code, git state,
    packages or command line."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_save_requirements=False,
        reinit="create_new",
        init_timeout=WAIT_S,
        finish_timeout=WAIT_S - 5,
        finish_timeout_raises=True,
    )


def _check_login() -> None:
    """Raises ConfigError if wandb has no key; sends nothing."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    if not wandb.login(prompt=False, verify=False):
        raise ConfigError(
            "trackers.wandb=online finds no login: run `wandb login`, export WANDB_API_KEY, or set "
            "trackers.wandb=offline and send the run later with `wandb sync`"
        )


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers in nested mappings, under names joined by slashes."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}/{key}", inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
