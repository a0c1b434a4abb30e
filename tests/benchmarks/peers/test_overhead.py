"""The overhead benchmark's arithmetic, and one small race of our own contestant."""

from __future__ import annotations

import pytest

from benchmarks.peers.contest import ANSWER
from benchmarks.peers.overhead import Measured, Setting, measure, report, timings, verdicts
from benchmarks.server.bill import Options
from benchmarks.server.loopback import spawn

FULL = Measured(calls=320, chain=3, drawn_s=32.0, wall_s=1.1, span_s=1.0, concurrency=32)
SERIAL = Measured(calls=100, chain=50, drawn_s=10.0, wall_s=10.0, span_s=9.9, concurrency=32)


def test_ideal_is_the_work_where_places_are_scarce() -> None:
    assert (FULL.work_s, FULL.ideal_s) == (1.0, 1.0)
    assert FULL.ratio == pytest.approx(1.1)


def test_ideal_is_the_critical_path_where_calls_must_wait() -> None:
    assert SERIAL.ideal_s == SERIAL.critical_s == pytest.approx(5.0)
    assert SERIAL.ratio == pytest.approx(2.0)


def test_the_table_has_a_row_a_setting_and_the_goals_a_verdict() -> None:
    rows = {
        Setting("orchestry", 32, "constant"): [FULL],
        Setting("orchestry", 32, "lognormal"): [SERIAL],
        Setting("gepa", 32, "constant"): [SERIAL, SERIAL],
    }
    assert len(timings(rows).splitlines()) == 2 + len(rows)
    met, missed = verdicts(rows).splitlines()
    assert met.endswith("1.10, goal 1.1: met.")
    assert missed.endswith("2.00, goal 1.25: missed.")
    assert verdicts(rows) in report(rows)


@pytest.mark.slow
def test_our_contestant_makes_its_calls_within_its_places() -> None:
    with spawn(Options(latency_s=0.02, answer=ANSWER)) as server:
        measured = measure(server, Setting("orchestry", 4, "constant"), 60)
        bill = server.bill()
    assert measured.calls == bill["billed_requests"] == 60
    assert bill["max_in_flight"] == 4
    assert measured.ratio > 1.0
