"""The resume benchmark: its audit finds what it should, and two real kills pass it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.guarantees.resume import Home, answer_text, audit, play, section
from benchmarks.server.loopback import Spawned
from orchestry.core.types import Completion
from orchestry.store.journal import Answered, Event, Lost, Opened, Reserved
from tests.journals import write_journal

ONE, TWO = "a" * 24, "b" * 24
OPENED = Opened(at=0.0, provider="anthropic", model="m")


def reserved(call: int, key: str) -> Reserved:
    return Reserved(call=call, key=key, usd=0.01)


def answered(call: int, key: str, body: str) -> Answered:
    text = answer_text(body)
    completion = Completion(text=text, model="m", usd=0.001)
    common: dict[str, Any] = {"agent": "a", "purpose": "act", "source": "provider", "at": 0.0}
    return Answered(call=call, key=key, completion=completion, **common)


THEN: list[Event] = [OPENED, reserved(0, "k1"), reserved(1, "k2"), answered(0, "k1", ONE)]
REST: list[Event] = [Lost(call=1, why=""), OPENED, reserved(2, "k2"), answered(2, "k2", TWO)]


def faults(
    folder: Path,
    bodies: dict[str, int],
    usd: float = 0.003,
    rest: list[Event] | None = None,
) -> list[str]:
    write_journal(folder, [*THEN, *(REST if rest is None else rest)])
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    then = b"".join(lines[: len(THEN)])
    bill = {"usd": usd, "by_body_hash": {body: [n, n] for body, n in bodies.items()}}
    torn = then + b'{"kind":"rese'
    return audit(folder, torn, {"cost_usd": 0.012}, bill).faults


def test_a_call_in_flight_may_be_billed_twice(tmp_path: Path) -> None:
    assert faults(tmp_path, {ONE: 1, TWO: 2}) == []


@pytest.mark.parametrize(
    ("bodies", "usd", "fault"),
    [
        ({ONE: 2, TWO: 1}, 0.003, "an answer in the journal was asked again"),
        ({ONE: 1, TWO: 3}, 0.003, "a request was billed three times"),
        ({ONE: 1, TWO: 1, "c" * 24: 1}, 0.003, "a billed request has no answer in the journal"),
        ({ONE: 1, TWO: 1}, 0.013, "the bill is above the ledger"),
    ],
)
def test_the_audit_names_what_is_wrong(
    tmp_path: Path,
    bodies: dict[str, int],
    usd: float,
    fault: str,
) -> None:
    assert fault in faults(tmp_path, bodies, usd)


def test_the_audit_misses_calls_that_were_not_charged_as_lost(tmp_path: Path) -> None:
    found = faults(tmp_path, {ONE: 1, TWO: 1}, rest=REST[1:])
    assert any("charged as lost" in fault for fault in found)


def test_a_run_has_begun_once_it_can_be_resumed(tmp_path: Path) -> None:
    home = Home(tmp_path, Spawned("http://127.0.0.1:1", 0))
    home.run.mkdir()
    (home.run / "journal.jsonl").touch()
    assert not home.begun
    (home.run / "config.yaml").touch()
    assert home.begun


@pytest.mark.slow
def test_two_kills_and_an_early_one() -> None:
    found = play(kills=2, early=1, seed=7, workers=1)
    assert found["faults"] == {}
    assert found["identical_and_paid_once"] == found["kills"] == 2
    assert "**2 of 2**" in section(found)
