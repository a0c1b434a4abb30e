"""A run that is read while it grows says at each moment what its files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestry.core.types import Completion
from orchestry.report.live import LAST, WINDOW_S, Followed, Tail
from orchestry.report.page.entry import row
from orchestry.report.runs import Salvaged
from orchestry.store.journal import Answered, Event, Opened, Reserved, Stopped, encode, last_crc
from orchestry.store.run import Run, Store
from tests.report.made import copied


def grown(source: Path, place: Path, share: float) -> None:
    """The first part of a run's files, in bytes: lines may be torn."""
    place.mkdir(exist_ok=True)
    for name in ("config.yaml", "journal.jsonl", "episodes.jsonl", "run.lock"):
        whole = (source / name).read_bytes()
        kept = len(whole) if name == "config.yaml" else int(len(whole) * share)
        with (place / name).open("ab") as file:
            file.write(whole[file.tell() : kept])


def test_at_each_moment_it_says_what_a_fresh_reading_says(searched: Run, tmp_path: Path) -> None:
    place = tmp_path / "run"
    grown(searched.folder, place, 0.05)
    followed = Followed(place)
    for step in range(1, 21):
        grown(searched.folder, place, step / 20)
        followed.refresh()
        fresh = Salvaged(place)
        if len(followed.rows) == len(fresh.episodes):  # a line may be there before its commit
            assert followed.summary == fresh.folded
            assert followed.rows == [row(record) for record in fresh.episodes]
        assert followed.took == fresh.took
    assert len(followed.rows) == len(searched.episodes) == 3
    assert followed.missing == fresh.missing
    assert not followed.refresh()


def test_a_tree_is_read_from_its_place_with_all_its_texts(searched: Run) -> None:
    followed = Followed(searched.folder)
    assert [followed.tree(one.episode) for one in searched.episodes] == searched.episodes
    assert followed.tree(99) is None
    assert not any(node.turns for record in followed.episodes for node in record.nodes)


def test_episodes_that_are_written_anew_are_read_anew(folder: Path) -> None:
    followed = Followed(folder)
    assert (followed.replaced, len(followed.rows)) == (1, 3)
    with Store(folder) as store:
        store.roll_back(1, at=1.0)
        followed.refresh()
        assert (followed.replaced, [one["episode"] for one in followed.rows]) == (2, [0])
        assert followed.now.state == "running"
    (folder / "episodes.jsonl").unlink()
    assert followed.tree(2) is None


def test_damaged_lines_are_counted(folder: Path) -> None:
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b"nonsense\n"
    (folder / "journal.jsonl").write_bytes(b"".join(lines))
    (said,) = Followed(folder).missing
    assert said.endswith("2")  # and the one that follows it


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    tail = Tail(file)
    assert tail.look() == (False, [])
    file.write_bytes(b"one\ntw")
    assert tail.look() == (True, [(0, b"one")])
    with file.open("ab") as more:
        more.write(b"o\nthree\n")
    assert tail.look() == (False, [(4, b"two"), (8, b"three")])
    file.write_bytes(b"1\n")
    assert tail.look() == (True, [(0, b"1")])


@pytest.fixture
def journal(folder: Path) -> Path:
    """Of a run that begins at 1,000 s with four calls, two of which were answered."""
    for name in ("journal.head", "episodes.jsonl", "summary.json"):
        (folder / name).unlink()
    said = Completion(text="x", model="m", input_tokens=1, output_tokens=40, usd=0.1)
    events: list[Event] = [Opened(at=1000.0, provider="fake", model="m")]
    events += [Reserved(call=call, key=f"k{call}", usd=1.0) for call in range(4)]
    for call, at in ((0, 1001.0), (1, 1001.0 + WINDOW_S - 0.5)):
        given = {"call": call, "key": f"k{call}", "agent": "writer", "purpose": "act"}
        answered = {"source": "provider", "completion": said, "at": at, "seconds": 1.5}
        events.append(Answered.model_validate({**given, **answered}))
    path = folder / "journal.jsonl"
    path.write_bytes(b"")
    written(path, *events)
    return path


def written(journal: Path, *events: Event) -> None:
    """Appends events."""
    for event in events:
        with journal.open("ab") as file:
            file.write(encode(event, last_crc(journal.read_bytes())))


def test_what_it_does_now_is_that_of_the_last_seconds(journal: Path) -> None:
    at = [1001.0]
    with Store(journal.parent):
        followed = Followed(journal.parent, clock=lambda: at[0])
        now = followed.now
        assert (now.state, now.open) == ("running", 2)
        assert now.tokens_per_s == 2 * 40 / WINDOW_S
        assert now.usd_per_min == pytest.approx(2 * 0.1 * 60 / WINDOW_S)
        assert now.last == (("writer", "act", 1.5, 40),) * 2
        assert now.eta_s is None
        at[0] = 1001.0 + WINDOW_S + 0.1
        assert followed.now.tokens_per_s == 40 / WINDOW_S
    assert len(now.last) <= LAST
    assert (followed.now.state, followed.now.open) == ("cut off", None)
    written(journal, Stopped(reason="budget", at=1100.0))
    followed.refresh()
    assert (followed.now.state, followed.took) == ("budget", 100.0)


def test_a_resumed_run_counts_its_pace_from_its_resume(searched: Run, tmp_path: Path) -> None:
    place = copied(searched.folder, tmp_path / "run")
    config = (place / "config.yaml").read_text().replace("episodes: 3", "episodes: 9")
    (place / "config.yaml").write_text(config)
    begun = searched.events[0]
    assert isinstance(begun, Opened)
    with Store(place):
        followed = Followed(place, clock=lambda: begun.at + 6.0)
        assert followed.now.state == "starting"  # its journal says that it has ended
        written(place / "journal.jsonl", Opened(at=begun.at + 5, provider="fake", model="m"))
        followed.refresh()
        assert (followed.now.state, followed.now.eta_s) == ("running", None)
