"""The journal under kills, damage, full disks and other versions."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.errors import StoreError
from orchestry.core.types import Completion
from orchestry.store.journal import (
    VERSION,
    Answered,
    Committed,
    Event,
    Journal,
    Learned,
    Opened,
    Released,
    Reserved,
    decode,
    encode,
    read,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
EVENTS = st.one_of(
    st.builds(Reserved, call=st.integers(0), key=TEXT, usd=st.floats(0, 10)),
    st.builds(Released, call=st.integers(0), why=TEXT),
    st.builds(
        Answered,
        call=st.none() | st.integers(0),
        key=TEXT,
        agent=TEXT,
        purpose=TEXT,
        source=st.sampled_from(["provider", "cache"]),
        completion=st.builds(Completion, text=TEXT, model=TEXT, usd=st.floats(0, 10)),
        at=st.floats(0, 2e9),
        seconds=st.floats(0, 100),
    ),
)


def write(path: Path, events: list[Event]) -> None:
    journal = Journal(path)
    for event in events:
        journal.append(event)
    journal.close()


@given(EVENTS)
def test_what_is_written_is_read(event: Event) -> None:
    line = encode(event)
    assert line.count(b"\n") == 1
    assert decode(line[:-1]) == event
    assert isinstance(json.loads(line), dict)


@given(EVENTS, st.data())
def test_any_changed_byte_is_found(event: Event, data: st.DataObject) -> None:
    line = bytearray(encode(event)[:-1])
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="checksum"):
        decode(bytes(line))


@given(st.lists(EVENTS, min_size=1, max_size=5), EVENTS, st.data())
def test_a_torn_last_line_is_left_out(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Event],
    torn: Event,
    data: st.DataObject,
) -> None:
    """A kill while a line is written: its head is the one of the line before."""
    path = tmp_path_factory.mktemp("torn") / "journal.jsonl"
    write(path, events)
    piece = encode(torn, 1)[:-1]
    with path.open("ab") as file:
        file.write(piece[: data.draw(st.integers(0, len(piece)))])
    assert list(read(path)) == events
    write(path, [Committed(episode=7, at=0.0)])
    assert list(read(path)) == [*events, Committed(episode=7, at=0.0)]


def reopened(path: Path) -> list[Event]:
    """What the next process finds."""
    found = list(read(path))
    Journal(path).close()
    return found


@given(st.lists(EVENTS, min_size=2, max_size=6), st.data())
def test_lines_removed_doubled_moved_or_cut_off_are_found(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("harmed") / "journal.jsonl"
    write(path, events)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    one, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    cut = data.draw(st.integers(0, len(whole) - 1))
    swapped = [lines[{one: other, other: one}.get(i, i)] for i in range(len(lines))]
    harmed = data.draw(
        st.sampled_from(
            (
                b"".join(lines[:one] + lines[one + 1 :]),
                b"".join(lines[: one + 1] + lines[other:]) if other != one + 1 else b"",
                b"".join(swapped) if one != other else b"",
                whole[:cut],
                encode(events[0]) * 2,
            )
        )
    )
    path.write_bytes(harmed)
    with pytest.raises(StoreError, match=r"orchestry resume \S+ --accept-changes"):
        reopened(path)


def test_a_journal_or_lock_that_is_replaced_under_its_writer_is_noticed(tmp_path: Path) -> None:
    def removed(file: Path) -> None:
        file.unlink()

    def replaced(file: Path) -> None:
        beside = file.with_name("copy")
        beside.write_bytes(file.read_bytes())
        beside.replace(file)

    def written(file: Path) -> None:
        file.write_bytes(file.read_bytes() + b"{}\n")

    harms = [(removed, "gone"), (replaced, "another file")]
    cases = [(name, *harm) for name in ("journal.jsonl", "run.lock") for harm in harms]
    for name, harm, said in [*cases, ("journal.jsonl", written, "bytes, not")]:
        folder = tmp_path / f"{name}-{said}"
        folder.mkdir()
        (folder / "run.lock").touch()
        journal = Journal(folder / "journal.jsonl", folder / "run.lock")
        journal.append(Committed(episode=0, at=0.0))
        before = (folder / name).read_bytes()
        harm(folder / name)
        with pytest.raises(StoreError, match=f"{name} .*{said}.*which stops here"):
            journal.append(Committed(episode=1, at=0.0))
        assert not (folder / name).exists() or (folder / name).read_bytes().startswith(before)
        journal.close()


def test_damage_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, [Committed(episode=n, at=0.0) for n in range(3)])
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"1", b"2", 1)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(StoreError, match=r"journal.jsonl, line 2 is damaged.*first 1 lines"):
        list(read(path))


@pytest.mark.parametrize("place", ["/home/me/thesis.txt", "checkpoints/../../thesis.txt"])
def test_a_checkpoint_outside_of_the_run_is_damage(tmp_path: Path, place: str) -> None:
    """Old checkpoints are deleted, and a run may be a stranger's."""
    outside = Learned.model_construct(update=1, state={"checkpoint": place}, at=0.0)
    (tmp_path / "journal.jsonl").write_bytes(encode(outside))
    with pytest.raises(StoreError, match=r"line 1 is damaged.*outside of the run's folder"):
        list(read(tmp_path / "journal.jsonl"))


def test_another_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, [Opened(version=VERSION + 1, at=0.0, provider="fake", model="fake-1")])
    with pytest.raises(StoreError, match=f"is of version {VERSION + 1}, this release reads"):
        list(read(path))


def test_another_version_with_other_events_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"kind": "begun", "version": 9}\n')
    with pytest.raises(StoreError, match="is of version 9"):
        list(read(path))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A real limit on the file's size, in a process of its own, stands for a full disk."""
    path = tmp_path / "journal.jsonl"
    program = f"""
import resource, signal
from pathlib import Path
from orchestry.store.journal import Committed, Journal
from orchestry.core.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
journal = Journal(Path({str(path)!r}))
try:
    for n in range(9):
        journal.append(Committed(episode=n, at=0.0))
except StoreError as error:
    print(error)
"""
    assert resource.RLIMIT_FSIZE is not None
    assert signal.SIGXFSZ is not None
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "can't be written" in done.stdout
    assert "orchestry resume" in done.stdout
    assert len(list(read(path))) == 2
    assert path.read_bytes().endswith(b"\n")
