"""The run directory: one writer, an append-only journal, and files made from it.

`journal.jsonl` is the source of truth. `episodes.jsonl` has one line per finished episode, written
before the journal's `committed`; metrics.jsonl and rewards.csv are made from it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout
from pydantic import ValidationError

from orchestry.core.config import modern
from orchestry.core.errors import ConfigError, LockedError, StoreError, reason, too_long
from orchestry.core.files import is_run, json_lines, read_yaml, refuse_pipes, refused, write_atomic
from orchestry.store import journal
from orchestry.store.journal import Committed, Evaluated, Event, Journal, Learned, RolledBack
from orchestry.store.records import EpisodeRecord, Metrics, Summary, rewards_csv

FOLDS = ("episodes.jsonl", "metrics.jsonl", "rewards.csv")
"""The files made from committed episodes."""


LOOKED_AT_S = 0.05
"""Who looks whether a run is written holds its lock for less."""


class Mirror(Protocol):
    """Shows a run in another tool. Every method must be fast and must not raise."""

    def committed(self, record: EpisodeRecord, at: float) -> None:
        """An episode was committed."""
        ...

    def learned(self, event: Learned) -> None:
        """An update was committed."""
        ...

    def evaluated(self, event: Evaluated) -> None:
        """An evaluation on dev was committed."""
        ...

    def close(self) -> None:
        """This process has stopped writing."""
        ...


class Store:
    """The only writer of a run directory; use it with `with`.

    Raises LockedError while another process writes it, StoreError if the disk refuses or the
    journal lost lines (with `shortened`, a lost end is accepted).
    """

    def __init__(self, folder: Path, *, shortened: bool = False) -> None:
        self.folder = folder
        self._shortened = shortened
        self.events: list[Event] = []
        self.episodes: dict[int, EpisodeRecord] = {}
        self.journal: Journal
        self.lost: set[int] = set()
        """Episodes that the journal calls finished but episodes.jsonl lacks; they are played
        again."""
        self.mirrors: list[Mirror] = []
        self._metrics = Metrics()
        self._lock = FileLock(folder / "run.lock")

    def __enter__(self) -> Store:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise too_long(error) from None
            raise StoreError(
                f"{self.folder} can't be made ({error.strerror or error}): free space or change "
                "rights there, or choose another --run-dir; nothing was spent"
            ) from None
        refuse_links(self.folder)
        try:
            self._lock.acquire(timeout=LOOKED_AT_S)
        except Timeout:
            raise LockedError(
                f"{self.folder} is being written by another process: wait for it, or stop it"
            ) from None
        except OSError as error:
            raise refused(self.folder, error) from None
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _open(self) -> None:
        path = self.folder / "journal.jsonl"
        self.events = list(journal.read(path)) if path.exists() else []
        records = _records(self.folder)
        if not self._shortened:
            _check_known(path, records, self.events)
        self.episodes, self.lost = committed_episodes(self.folder, self.events, records)
        self.journal = Journal(path, self.folder / "run.lock", shortened=self._shortened)
        if any((self.folder / name).exists() for name in FOLDS):  # a kill may have cut a line off
            self.rewrite()

    def __exit__(self, *exc: object) -> None:
        self.journal.close()
        try:
            for mirror in self.mirrors:
                mirror.close()
        finally:
            self._lock.release()

    def commit(self, record: EpisodeRecord, at: float) -> None:
        """Commits a finished episode, in all files."""
        self.append("episodes.jsonl", record.model_dump_json() + "\n")
        self.journal.append(Committed(episode=record.episode, at=at))
        self.episodes[record.episode] = record
        if not record.failed:
            header = not self._metrics.count
            self.append("metrics.jsonl", json.dumps(self._metrics.row(record)) + "\n")
            self.append("rewards.csv", rewards_csv([record], header=header))
        for mirror in self.mirrors:
            mirror.committed(record, at)

    def learned(self, event: Learned) -> None:
        """Commits an update."""
        self.journal.append(event)
        for mirror in self.mirrors:
            mirror.learned(event)

    def evaluated(self, event: Evaluated) -> None:
        """Commits an evaluation on dev."""
        self.journal.append(event)
        for mirror in self.mirrors:
            mirror.evaluated(event)

    def roll_back(self, episode: int, at: float) -> None:
        """Discards the finished episodes from this one on; they are played again."""
        self.journal.append(RolledBack(episode=episode, at=at))
        self.lost = {number for number in self.lost if number < episode}
        for number in [number for number in self.episodes if number >= episode]:
            del self.episodes[number]
        self.rewrite()

    def rewrite(self) -> None:
        """Rewrites the derived files from the committed episodes, in order."""
        records = [self.episodes[number] for number in sorted(self.episodes)]
        lines = "".join(record.model_dump_json() + "\n" for record in records)
        self.write("episodes.jsonl", lines)
        records = [record for record in records if not record.failed]
        self._metrics = Metrics()
        rows = "".join(json.dumps(self._metrics.row(record)) + "\n" for record in records)
        self.write("metrics.jsonl", rows)
        self.write("rewards.csv", rewards_csv(records, header=True))

    def write(self, name: str, text: str) -> None:
        """Writes a whole file of the run: a reader sees the old or the new one, never a part."""
        self.journal.check()
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        try:
            write_atomic(path, text.encode("utf-8"))
        except OSError as error:
            raise refused(path, error) from None

    def append(self, name: str, text: str) -> None:
        """Appends lines to a file of the run, all of them or none."""
        self.journal.check()
        path = self.folder / name
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(text.encode("utf-8"))
        except OSError as error:
            with suppress(OSError):  # an incomplete line would spoil the next one
                os.truncate(path, size)
            raise refused(path, error) from None


class Run:
    """A run directory, read lazily; notebooks and reports use it."""

    def __init__(self, folder: Path) -> None:
        """Raises StoreError where a file of the run is a pipe or a device."""
        refuse_pipes(folder)
        self.folder = folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """The plain data of config.yaml."""
        return read_config(self.folder)

    @property
    def neural(self) -> bool:
        """Whether backend ppo played it: games as numbers, without texts, calls or episodes."""
        return self.config.get("backend") == "ppo"

    @cached_property
    def events(self) -> list[Event]:
        """The journal, oldest event first."""
        return list(journal.read(self.folder / "journal.jsonl"))

    @cached_property
    def episodes(self) -> list[EpisodeRecord]:
        """The finished episodes in order, without failed ones."""
        return [record for record in self._all if not record.failed]

    @property
    def failed(self) -> list[EpisodeRecord]:
        """Failed episodes: none of their trajectories finished."""
        return [record for record in self._all if record.failed]

    @cached_property
    def _all(self) -> list[EpisodeRecord]:
        found, lost = committed_episodes(self.folder, self.events)
        if lost:
            raise StoreError(
                f"{self.folder / 'episodes.jsonl'} lacks episode {min(lost)}, which the journal "
                f"says is finished: `orchestry resume {self.folder}` plays it again from the "
                "journal's answers, at no cost"
            )
        return [found[number] for number in sorted(found)]

    @property
    def summary(self) -> Summary:
        """summary.json; raises StoreError if it does not exist yet."""
        path = self.folder / "summary.json"
        try:
            return Summary.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise StoreError(
                f"{self.folder} has no summary.json: the run was cut off; "
                f"`orchestry resume {self.folder}` ends it"
            ) from None
        except ValidationError as error:
            raise StoreError(
                f"{path} is damaged ({reason(error)}): `orchestry resume {self.folder}` mends it"
            ) from None

    @property
    def rewards(self) -> list[float]:
        """The reward of each finished episode, the mean over its trajectories, in order."""
        return [episode.mean_reward for episode in self.episodes]

    @property
    def best_of_k(self) -> list[float]:
        """The reward of each finished episode's best trajectory, in order."""
        return [episode.best_of_k for episode in self.episodes]

    @property
    def best(self) -> EpisodeRecord | None:
        """The episode with the best trajectory; the first, if tied. Raises ConfigError for a run of
        backend ppo, which has none."""
        check_texts(self)
        return max(self.episodes, key=lambda e: (e.reward, -e.episode), default=None)


def load_run(path: str | Path) -> Run:
    """Reads a run directory; raises ConfigError if there is none, StoreError for damage."""
    return Run(existing(Path(path)))


NO_TEXTS = (
    "whose policies play games as numbers and write no texts: `orchestry report RUN` draws what "
    "they learned, `orchestry evaluate RUN` plays them beside other teams, `orchestry distil "
    "--teacher RUN` has language models learn from them, and `orchestry.load_run(RUN).policy()` "
    "gives them to Python"
)


def check_texts(run: Run) -> None:
    """Raises ConfigError for a run in which nobody wrote a text."""
    if run.neural:
        raise ConfigError(f"{run.folder} is a run of backend ppo, {NO_TEXTS}")


def existing(folder: Path) -> Path:
    """The folder, if it holds a run; raises ConfigError."""
    if not is_run(folder) or not (folder / "config.yaml").is_file():
        if (folder / "config.yaml").is_file() and (folder / "stages").is_dir():
            raise ConfigError(
                f"{folder} holds a recipe: name one of its stages, such as the last in "
                f"{folder / 'stages'}"
            )
        if (folder / "run.lock").exists() and not (folder / "config.yaml").exists():
            raise ConfigError(
                f"{folder} has no config.yaml: restore it from a copy; if the run was cut off "
                f"before its first call, begin it again with `orchestry run --run-dir {folder}`"
            )
        what = "holds no run" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {what}: give the directory that `orchestry run` printed")
    refuse_links(folder)
    return folder


def is_written(folder: Path) -> bool:
    """Whether a process writes this run now."""
    return is_held(folder / "run.lock")


def is_held(path: Path) -> bool:
    """Whether a process holds that lock. To look takes a shared lock for a moment, which changes
    nothing in the folder."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def refuse_links(folder: Path) -> None:
    """Raises ConfigError for a link, device or pipe in a run directory, because writing to it could
    change files elsewhere. Trackers' folders are not checked.
    """
    for place, folders, files in os.walk(folder):
        names = [*folders, *files]
        folders[:] = [name for name in folders if (place, name) != (str(folder), "wandb")]
        for path in (Path(place, name) for name in names):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # the run's writer has just replaced it
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ConfigError(
                    f"{path} is {'a link' if stat.S_ISLNK(mode) else 'no plain file'}, and all of "
                    "a run lies in its own directory: put a copy of what belongs there in its "
                    "place, or delete it"
                )


def read_config(folder: Path) -> dict[str, Any]:
    """The plain data of config.yaml, of any release."""
    path = folder / "config.yaml"
    try:
        data = read_yaml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} can't be read ({' '.join(str(error).split())}): correct it, then continue"
        ) from None
    if not data:
        raise ConfigError(f"{path} holds no keys and values: restore it from a copy, then continue")
    return modern(data)


def committed_episodes(
    folder: Path, events: Iterable[Event], records: Mapping[int, EpisodeRecord] | None = None
) -> tuple[dict[int, EpisodeRecord], set[int]]:
    """The committed episodes by number, and the numbers of missing ones.

    A line that was not committed is skipped; a damaged one raises StoreError.
    """
    whole, there = committed(events), _records(folder) if records is None else records
    found = {number: record for number, record in there.items() if number in whole}
    return found, whole - found.keys()


def _records(folder: Path) -> dict[int, EpisodeRecord]:
    """All whole lines of episodes.jsonl, in their order."""
    path = folder / "episodes.jsonl"
    found: dict[int, EpisodeRecord] = {}
    lines = list(json_lines(path.read_bytes())) if path.exists() else []
    for number, line in lines:
        try:
            record = EpisodeRecord.model_validate_json(line)
        except ValidationError as error:
            if (number, line) == lines[-1]:  # cut off by a kill: not committed, or reported missing
                break
            raise StoreError(
                f"{path}, line {number} is damaged ({reason(error)}): delete the line, then "
                "resume; its episode is played again from the journal's answers, at no cost"
            ) from None
        found[record.episode] = record
    return found


def _check_known(path: Path, records: Iterable[int], events: Sequence[Event]) -> None:
    """Raises StoreError if the journal lacks finished episodes: it was emptied or shortened, and
    their cost would be forgotten. A kill may have left the last one uncommitted.
    """
    known = {event.episode for event in events if isinstance(event, Committed)}
    unknown = [number for number in records if number not in known]
    if len(unknown) > 1 or (unknown and not events):
        raise StoreError(
            f"{path} {'is empty' if not events else 'was shortened'}: episodes.jsonl holds "
            f"{len(unknown)} finished episodes that it does not know, and what they cost is not "
            f"counted: restore it from a copy, or `orchestry resume {path.parent} "
            "--accept-changes`, which plays and pays them again"
        )


def committed(events: Iterable[Event]) -> set[int]:
    """Numbers of the finished episodes in a journal, without discarded ones."""
    found = set[int]()
    for event in events:
        if isinstance(event, Committed):
            found.add(event.episode)
        elif isinstance(event, RolledBack):
            found = {episode for episode in found if episode < event.episode}
    return found
