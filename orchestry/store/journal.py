"""The journal: the append-only record that ledger, resume, replays and reports read.

One event per line of JSON, closed by a CRC-32 that includes the line before, so that a changed,
missing, doubled or moved line is found and named. A kill leaves at most one incomplete last line,
which readers drop. `journal.head` holds the journal's length, so a journal that lost its end is
found too.
"""

from __future__ import annotations

import codecs
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from orchestry.core.errors import StoreError, reason
from orchestry.core.types import Completion, Frozen, Score

VERSION = 2
HEAD = "journal.head"
"""Bytes of the journal and checksum of its last line, written after each line."""


class Opened(Frozen):
    """A process took the run directory: once at the start, and once per resume."""

    kind: Literal["opened"] = "opened"
    version: int = VERSION
    at: float
    """Unix time in seconds."""
    provider: str
    model: str
    """The default model; a recorded replay asks for the same one."""
    calibration: tuple[float, float] = (1.0, 0.0)
    """Slope and intercept of this process's correction of the judge's numbers."""
    digests: dict[str, str] = Field(default_factory=dict)
    """What the process ran on, by name: `config`, `task`, their parts, and the backend's own."""
    accepted: tuple[str, ...] = ()
    """Changes since the previous process that the user accepted."""
    providers: dict[str, str] = Field(default_factory=dict)
    """Names of the providers that this process asks, by the first part of their answers' keys."""


class Reserved(Frozen):
    """Before an attempt: at most `usd` may be charged for it."""

    kind: Literal["reserved"] = "reserved"
    call: int
    """Number of the attempt, unique in the run."""
    key: str
    usd: float


class Answered(Frozen):
    """An answer arrived. From the cache it costs nothing and has no call number.

    `refused`: the prompt is longer than the model's context, or a program's call was refused, and
    the program told why; the answer is empty. `failed`: the call failed for good. A resume asks the
    latter two again only if no later call of that provider was answered, because then a setting may
    have been wrong. `weights`: this process's own model drew it, at no cost; it is never asked for
    again.
    """

    kind: Literal["answered"] = "answered"
    call: int | None
    key: str
    agent: str
    purpose: str
    source: Literal["provider", "cache", "refused", "failed", "weights"]
    completion: Completion
    at: float
    seconds: float = 0.0
    saved: float = Field(0.0, exclude_if=lambda usd: not usd)
    """The dollars that an answer from the cache would have cost."""


class Released(Frozen):
    """The attempt failed and was not charged."""

    kind: Literal["released"] = "released"
    call: int
    why: str


class Lost(Frozen):
    """The attempt may have been charged although no answer came; its worst case counts as spent."""

    kind: Literal["lost"] = "lost"
    call: int
    why: str


class Counted(Frozen):
    """A lost call cost at most `usd`: a later answer to the same request showed its input count."""

    kind: Literal["counted"] = "counted"
    call: int
    key: str
    usd: float


class Used(Frozen):
    """An agent called a tool. Of a tool with effects there is an event before the call too."""

    kind: Literal["used"] = "used"
    key: str
    """Digest of the request whose answer has the call, and the call's place in it."""
    agent: str
    tool: str
    result: str | None
    """What the agent was told; None before the call."""
    at: float


class Scored(Frozen):
    """A state was scored. A resume takes this score and does not evaluate again."""

    kind: Literal["scored"] = "scored"
    key: str
    score: Score


class Learned(Frozen):
    """The backend made an update, on which later episodes depend.

    `state` is the backend's own; a resume returns it to the backend.
    """

    kind: Literal["learned"] = "learned"
    update: int
    """1 for the first."""
    state: dict[str, Any]
    at: float

    @field_validator("state")
    @classmethod
    def _inside(cls, state: dict[str, Any]) -> dict[str, Any]:
        """A run of a stranger's may name any file, and old checkpoints are deleted."""
        path = PurePosixPath(str(state.get("checkpoint", "")))
        if path.is_absolute() or ".." in path.parts:
            raise ValueError("the checkpoint lies outside of the run's folder")
        return state


class Evaluated(Frozen):
    """The team after an update played dev problems; learning does not depend on it."""

    kind: Literal["evaluated"] = "evaluated"
    update: int
    """0: the untrained team."""
    reward: float
    """Mean over all trajectories of all problems, in [0, 1]."""
    tags: dict[str, float]
    """Share of the trajectories with each tag, such as those of cooperation."""
    at: float


class Rated(Frozen):
    """A person's rating of a trajectory. It outranks the judge; the last one for a node counts."""

    kind: Literal["rated"] = "rated"
    episode: int
    node: str
    rating: float = Field(ge=0.0, le=1.0)
    comment: str = ""
    override: bool = False
    """Whether it also replaces the task's reward, for learning."""
    answers: str = ""
    """Digest of the answers that were rated: an episode that is played again may have others. '':
    not recorded."""
    at: float


class Committed(Frozen):
    """An episode is complete, and its line is in episodes.jsonl."""

    kind: Literal["committed"] = "committed"
    episode: int
    at: float


class RolledBack(Frozen):
    """Finished episodes from this one on are discarded and played again."""

    kind: Literal["rolled_back"] = "rolled_back"
    episode: int
    at: float


class Stopped(Frozen):
    """The process ended in order."""

    kind: Literal["stopped"] = "stopped"
    reason: Literal["done", "budget", "away", "interrupted", "failed"]
    at: float


Event = Annotated[
    Opened
    | Reserved
    | Answered
    | Released
    | Lost
    | Counted
    | Used
    | Scored
    | Learned
    | Evaluated
    | Rated
    | Committed
    | RolledBack
    | Stopped,
    Field(discriminator="kind"),
]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def last_words(events: Iterable[Event]) -> dict[tuple[int, str], Rated]:
    """People's ratings by episode and node; the last one for a node counts."""
    return {(e.episode, e.node): e for e in events if isinstance(e, Rated)}


def ratings(events: Iterable[Event]) -> dict[tuple[int, str], float]:
    """Their numbers, in [0, 1]."""
    return {key: said.rating for key, said in last_words(events).items()}


class Journal:
    """The only writer of a journal file. `append` returns after the operating system has the event.

    Raises StoreError for a journal that lost its end, unless `shortened` is allowed.
    """

    def __init__(self, path: Path, lock: Path | None = None, *, shortened: bool = False) -> None:
        """`lock` is the file that keeps other writers out."""
        self.path = path
        whole = path.read_bytes() if path.exists() else b""
        whole = whole[: whole.rfind(b"\n") + 1]
        if not shortened:
            _check_head(path, whole)
        drop_torn_line(path)
        self._size, self._crc = len(whole), last_crc(whole)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._head = os.open(path.with_name(HEAD), os.O_WRONLY | os.O_CREAT, 0o644)
        self._files = {file: file.stat().st_ino for file in (path, lock) if file is not None}
        self._mark()

    def append(self, event: Event) -> None:
        """Writes one event; raises StoreError if the disk refuses, or another process took the
        folder."""
        self.check()
        line = encode(event, self._crc)
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise _refused(self.path, error) from None
        if written != len(line):  # cut the incomplete line off, so that later lines stay readable
            os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise _refused(self.path, OSError("only part of a line fitted"))
        self._size, self._crc = self._size + written, last_crc(line)
        self._mark()

    def check(self) -> None:
        """Raises StoreError if somebody else replaced, removed or wrote the journal or the
        lock since this process took them."""
        for file, inode in self._files.items():
            try:
                found = file.stat()
            except OSError:
                raise _taken(file, "is gone") from None
            if found.st_ino != inode:
                raise _taken(file, "is another file")
            if file == self.path and found.st_size != self._size:
                raise _taken(file, f"has {found.st_size:,} bytes, not {self._size:,}")

    def sync(self) -> None:
        """Flushes to the disk (fsync)."""
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._head)

    def _mark(self) -> None:
        """Always the same bytes in the same place, so it works on a full disk."""
        try:
            os.pwrite(self._head, b"%016d %08x\n" % (self._size, self._crc), 0)
        except OSError as error:
            raise _refused(self.path.with_name(HEAD), error) from None


def encode(event: Event, before: int = 0) -> bytes:
    """One line: the event's JSON object; its last field is the checksum, chained to the previous
    line's."""
    body = event.model_dump_json().encode("utf-8")[:-1]
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body, before))


def decode(line: bytes, before: int = 0) -> Event:
    """The event of a line; raises ValueError if the line is damaged or does not follow the line
    with checksum `before`."""
    body, sep, tail = line.rpartition(b',"crc":"')
    if not sep or tail[8:] != b'"}' or tail[:8] != b"%08x" % zlib.crc32(body, before):
        raise ValueError("its checksum does not match")
    return _EVENT.validate_json(body + b"}")


def checksums(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Each line with the previous line's checksum."""
    before = 0
    for line in lines:
        yield line, before
        before = last_crc(line)


def last_crc(lines: bytes) -> int:
    """The checksum at the end of the last line; 0 if there is none that can be read."""
    try:
        return int(lines[-11:].rstrip(b"\n")[-10:-2], 16)
    except ValueError:
        return 0


def _check_head(path: Path, whole: bytes) -> None:
    """Raises StoreError if the journal is shorter than its head says."""
    try:
        size, crc = path.with_name(HEAD).read_bytes().split()
        end, last = int(size), int(crc, 16)
    except (OSError, ValueError):
        return  # the head was not copied; the chain is checked anyway
    if len(whole) >= end and last_crc(whole[:end]) == last:
        return
    raise StoreError(
        f"{path} was shortened or replaced: {end:,} bytes were written, {len(whole):,} are there, "
        "and what it lacks was paid for and is not counted: restore the file from a copy, or go "
        f"on without with `orchestry resume {path.parent} --accept-changes`"
    )


def read(path: Path) -> Iterator[Event]:
    """All events of a journal, oldest first.

    An incomplete last line was cut off by a kill and is skipped. Raises StoreError, naming the
    line, for any other damage, and for a journal of another version.
    """
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}") from None
    for number, (line, before) in enumerate(checksums(lines[:-1]), start=1):
        yield _checked(path, number, line, before)


def drop_torn_line(path: Path) -> None:
    """Cuts a journal back to its last whole line."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def _checked(path: Path, number: int, line: bytes, before: int) -> Event:
    try:
        event = decode(line, before)
    except (ValueError, ValidationError) as error:
        if (version := _foreign_version(line)) is not None:
            raise _other_version(path, version) from None
        raise StoreError(
            f"{path}, line {number} is damaged, or does not follow the one before it "
            f"({reason(error)}): restore the file from a copy, or keep its first {number - 1} "
            f"lines and `orchestry resume {path.parent} --accept-changes`"
        ) from None
    if isinstance(event, Opened) and event.version != VERSION:
        raise _other_version(path, event.version)
    return event


def _foreign_version(line: bytes) -> int | None:
    """The version of a journal that this release can't read; None if it names no version."""
    try:
        version = json.loads(line).get("version")
    except (ValueError, AttributeError):
        return None
    return version if isinstance(version, int) and version != VERSION else None


def _other_version(path: Path, found: int) -> StoreError:
    return StoreError(
        f"{path} is of version {found}, this release reads version {VERSION}: "
        "use the release that wrote it (manifest.json names it), or start a new run"
    )


def _taken(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path} {what}: another process or a person changed it while this one wrote the run, "
        f"which stops here: see who did, then `orchestry resume {path.parent}`"
    )


def _refused(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} can't be written ({error.strerror or error}): free space on that disk, then "
        f"`orchestry resume {path.parent}`; every answer recorded so far is kept"
    )
