"""A run that is read as it grows: only what was written since the last look.

Texts and tokens are not kept, so that memory hardly grows: an episode's tree is read from its place
in episodes.jsonl when somebody wants to see it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.report.page.entry import row
from orchestry.report.runs import Salvaged, readable_episode
from orchestry.store import journal
from orchestry.store.collapse import Glance, glance
from orchestry.store.journal import (
    Answered,
    Counted,
    Event,
    Lost,
    Opened,
    Released,
    Reserved,
    Scored,
    Used,
)
from orchestry.store.progress import PACE, PROGRESS
from orchestry.store.records import EpisodeRecord, Summary
from orchestry.store.run import committed, is_written
from orchestry.store.summary import Fold, end_of, summarise_journal

WINDOW_S = 20.0
"""Tokens and dollars per second are those of so many seconds."""
LAST = 8
"""So many of the last answers are shown."""
_FOLDED = (Reserved, Answered, Released, Lost, Counted, Scored, Used)
"""Events that are added up and dropped: nearly all of a journal."""


class Tail:
    """The lines that were appended to a file since the last look, whole ones only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at, self._inode = 0, 0

    def look(self) -> tuple[bool, list[tuple[int, bytes]]]:
        """Whether the file was replaced, so that all counts from the start again; and each new
        line with its place in bytes."""
        try:
            file = self.path.open("rb")
        except OSError:
            return False, []
        with file:
            found = os.fstat(file.fileno())
            replaced = found.st_ino != self._inode or found.st_size < self._at
            if replaced:
                self._at, self._inode = 0, found.st_ino
            file.seek(self._at)
            data = file.read()
        lines, place = list[tuple[int, bytes]](), self._at
        for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]:
            lines.append((place, line))
            place += len(line) + 1
        self._at = place
        return replaced, lines


@dataclass(frozen=True, slots=True)
class Now:
    """What a run does at this moment."""

    state: str
    """`starting`, `running`, why it ended, or `cut off`."""
    open: int | None
    """Calls in flight; None: nothing is reserved for its calls, as in backend local."""
    tokens_per_s: float
    """Output tokens."""
    usd_per_min: float
    eta_s: float | None
    """Seconds to its end at the pace of this process; None: nothing to go by."""
    last: tuple[tuple[str, str, float, int], ...]
    """Of the last answers, the newest first: agent, purpose, seconds, tokens."""


class Followed(Salvaged):
    """A run that another process may be writing. `refresh` reads what is new.

    Its `events` lack what is only added up, and its episodes have no texts.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(folder)
        self._clock = clock
        self._journal_tail = Tail(folder / "journal.jsonl")
        self._episode_tail = Tail(folder / "episodes.jsonl")
        self._progress_tail = Tail(folder / PROGRESS)
        self.rows = list[dict[str, Any]]()
        """The page's row of each finished episode, in the order of episodes.jsonl."""
        self.replaced = 0
        """How often its episodes were written anew, as by a resume."""
        self._begin_journal()
        self._begin_episodes()
        self.refresh()

    def _begin_journal(self) -> None:
        self.events, self._fold, self._recent = list[Event](), Fold(), deque[Answered]()
        self._crc, self._before, self._unread = 0, 0, 0

    def _begin_episodes(self) -> None:
        self.rows, self._all, self._places = [], list[EpisodeRecord](), dict[int, int]()
        self.glances = dict[int, Glance]()
        self._unread_episodes = 0
        self.__dict__.pop("episodes", None)

    def refresh(self) -> bool:
        """Reads what is new; whether anything was."""
        found = [self._read_journal(), self._read_episodes(), self._read_progress()]
        self.__dict__.pop("written", None)  # summary.json is written at the end
        return any(found)

    def tree(self, episode: int) -> EpisodeRecord | None:
        """A finished episode with its texts; None if there is none."""
        if (place := self._places.get(episode)) is None:
            return None
        try:
            with self._episode_tail.path.open("rb") as file:
                file.seek(place)
                found = readable_episode(file.readline())
        except OSError:
            return None
        return found if found and found.episode == episode else None

    @property
    def took(self) -> float:
        """Wall-clock seconds of all its processes."""
        return self._fold.seconds

    @property
    def summary(self) -> Summary:
        """summary.json of a run that has ended; else what journal and episodes come to."""
        return (self.written if self.ended else None) or summarise_journal(
            self.folder, self.config, self._fold.books, self._all
        )

    @property
    def now(self) -> Now:
        """What it does at this moment."""
        at, end = self._clock(), end_of(self.events)
        if is_written(self.folder):  # a resume loads its models before it says that it goes on
            state = "starting" if end or not self.events else "running"
        else:
            state = end.reason if end else "cut off"
        running = state == "running"
        recent = [one for one in self._recent if at - one.at <= WINDOW_S and running]
        return Now(
            state=state,
            open=len(self._fold.balance.open) if running and self._fold.balance.calls else None,
            tokens_per_s=sum(one.completion.output_tokens for one in recent) / WINDOW_S,
            usd_per_min=sum(one.completion.usd for one in recent) * 60 / WINDOW_S,
            eta_s=self._eta(at) if running else None,
            last=tuple(
                (one.agent, one.purpose, round(one.seconds, 2), one.completion.output_tokens)
                for one in reversed(recent[-LAST:])
            ),
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing and a reader must know; of a run that goes on, only damage."""
        wrong = {"journal.jsonl": self._unread, "episodes.jsonl": self._unread_episodes}
        damaged = [
            f"lines of {name} that can't be read and are left out: {count}"
            for name, count in wrong.items()
            if count
        ]
        return (*damaged, *(() if is_written(self.folder) else self._unfinished()))

    def _eta(self, at: float) -> float | None:
        if self.neural:
            last = self.batches[-1] if self.batches else {}
            left, pace = self.config["ppo"]["steps"] - last.get("steps", 0), last.get(PACE, 0)
            return left / pace if pace else None
        opened = next((one for one in reversed(self.events) if isinstance(one, Opened)), None)
        if opened is None:
            return None
        done = len(self._all)
        played, left = done - self._before, int(self.config["episodes"]) - done
        return left * (at - opened.at) / played if played > 0 else None

    def _read_journal(self) -> bool:
        replaced, lines = self._journal_tail.look()
        if replaced:
            self._begin_journal()
        for _, line in lines:
            self._hear(line)
        return bool(lines)

    def _hear(self, line: bytes) -> None:
        try:
            event = journal.decode(line, self._crc)
        except ValueError:
            event, self._unread = None, self._unread + 1
        self._crc = journal.last_crc(line)
        if event is None:
            return
        self._fold.add(event)
        if isinstance(event, Opened):
            self._before = len(committed(self.events))
        if isinstance(event, Answered):
            self._recent.append(event)
            while self._recent and event.at - self._recent[0].at > WINDOW_S:
                self._recent.popleft()
        if not isinstance(event, _FOLDED):
            self.events.append(event)

    def _read_episodes(self) -> bool:
        replaced, lines = self._episode_tail.look()
        if replaced:
            self._begin_episodes()
            self.replaced += 1
        for place, line in lines:
            if (found := readable_episode(line)) is None:
                self._unread_episodes += 1
                continue
            self._places[found.episode] = place
            slim = [node.model_copy(update={"turns": ()}) for node in found.nodes]
            self._all.append(found.model_copy(update={"nodes": tuple(slim)}))
            if not found.failed:
                self.rows.append(row(found))
                self.glances[found.episode] = glance(found)
        if lines:
            self.__dict__.pop("episodes", None)
        return bool(lines)

    def _read_progress(self) -> bool:
        _, lines = self._progress_tail.look()
        if lines:
            for name in ("_progress", "_evaluations"):
                self.__dict__.pop(name, None)
        return bool(lines)
