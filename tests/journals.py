"""Journals as a kill would have left them, made of whole ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from orchestry.store import journal
from orchestry.store.journal import HEAD, Event, Lost, Released
from orchestry.store.summary import Balance, replay


def write_journal(folder: Path, events: list[Event]) -> None:
    """A whole journal of these events, and no other."""
    (folder / HEAD).unlink(missing_ok=True)
    (folder / "journal.jsonl").unlink(missing_ok=True)
    log = journal.Journal(folder / "journal.jsonl")
    for event in events:
        log.append(event)
    log.close()


def balance_of(events: Iterable[Event], bills_unanswered: bool) -> Balance:
    """What a journal's calls cost; one in flight at its worst case if it may have been billed."""
    balance = replay(events)
    for call in list(balance.open):
        end = Lost(call=call, why="") if bills_unanswered else Released(call=call, why="")
        balance.add(end)
    return balance


def keep_events(folder: Path, wanted: Callable[[Event], bool]) -> None:
    """The journal with only the events that are wanted, as if no other had been written."""
    events = list(journal.read(folder / "journal.jsonl"))
    write_journal(folder, [event for event in events if wanted(event)])


def cut_before(folder: Path, kind: str, number: int) -> None:
    """The journal as a kill left it that came before that `learned` or `evaluated` update."""
    events = list(journal.read(folder / "journal.jsonl"))
    place = next(
        n for n, e in enumerate(events) if e.kind == kind and getattr(e, "update", None) == number
    )
    write_journal(folder, events[:place])
