"""The figures of one machine: what follows from them, and the parts that measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.guarantees import scale
from benchmarks.guarantees.scale import Found, below, journalled, played, section
from orchestry.store.journal import Answered, Committed, Reserved, read

FOUND = Found(
    call=0.0015,
    gateway=0.0005,
    episode=0.03,
    calls=20.0,
    events=3.0,
    bytes=500.0,
    event=0.00001,
    synced_per_s=200.0,
    pair=0.00004,
    read=0.00002,
    host=0.0005,
    server=0.002,
    batch_per_s=400.0,
    token=0.01,
)
BURNS = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_a_run_ends_where_its_process_does_and_the_writer_much_later() -> None:
    assert pytest.approx(0.0025) == FOUND.run  # 1.5 ms without HTTP, and 1 ms of the provider
    assert pytest.approx(0.00005) == FOUND.writer
    text = section(FOUND, 0.5)
    for row in (
        "| calls/s that one run's process carries, over HTTP | 400 |",
        "| calls in flight then, where an answer takes 10 s | 4,000 |",
        "| episodes/s then | 20.0 |",
        "| share of the process's time for ledger and journal | 2% |",
        "| calls/s if the process did nothing but ledger and journal | 20,000 |",
        "| sandbox cores that one process keeps busy | 4.0 |",
        "| seconds to read a million events again | 20 |",
    ):
        assert row in text
    assert "50% of the machine's CPU time" in text


def test_cpu_time_of_processes_below_counts_those_that_ended_too() -> None:
    before = below()
    inner = [sys.executable, "-c", BURNS]
    outer = f"import subprocess\nsubprocess.run({inner}, input=b'\\n')\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline()  # the inner one's
        assert process.stdout.readline()  # the inner one ended
        assert below() - before >= 0.28
        process.stdin.write(b"\n")


@pytest.mark.slow
def test_a_run_is_journalled_again_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "EPISODES", 3)
    found, events = played(tmp_path)
    kinds = {kind: sum(isinstance(e, kind) for e in events) for kind in (Reserved, Answered)}
    assert kinds[Reserved] == kinds[Answered] == found["calls"] * 3
    assert sum(isinstance(event, Committed) for event in events) == 3
    assert found["events"] == len(events) / kinds[Answered] >= 2
    rates = journalled(tmp_path, events)
    assert list(read(tmp_path / "again" / "journal.jsonl")) == events
    assert min(rates.values()) > 0
