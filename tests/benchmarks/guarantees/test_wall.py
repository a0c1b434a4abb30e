"""The benchmark of full places: its timeline, its shares of idle time, and one small run."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.guarantees.wall import (
    PLACES,
    Look,
    Span,
    Stretch,
    config,
    look,
    section,
    shares,
    timeline,
)
from benchmarks.server.bill import Options
from benchmarks.server.loopback import spawn
from orchestry.engine.run import prepare


def seen(stretches: list[Stretch], wall_s: float = 4.0, overlap: bool = False) -> Look:
    calls = Counter({"act": 2, "trial": 1})
    return Look(0.1, overlap, calls, 0.3 * PLACES, wall_s, 1.0, 0.0, stretches)


def test_the_timeline_is_cut_where_a_call_begins_or_ends() -> None:
    calls = [Span("act", 1.0, 3.0), Span("act", 2.0, 3.0), Span("trial", 2.0, 4.0)]
    found = [stretch for stretch in timeline(calls, 0.0, 5.0) if stretch.seconds]
    assert [one.seconds for one in found] == [1.0] * 5
    assert [sum(one.calls.values()) for one in found] == [0, 1, 3, 1, 0]
    kinds = ["nothing", "search", "search and trial", "trial", "nothing"]
    assert [one.kind for one in found] == kinds


def test_idle_time_is_counted_in_places() -> None:
    stretches = [Stretch(1.0, {}), Stretch(2.0, {"act": PLACES // 2})]
    rows = shares(seen(stretches))
    assert [row["in flight"] for row in rows] == ["nothing", "search"]
    assert [row["share of all idle time"] for row in rows] == ["50%", "50%"]
    assert [row["slots taken, mean"] for row in rows] == ["0.0", f"{PLACES / 2:.1f}"]


@pytest.mark.parametrize(("wall_s", "word"), [(0.45, "met"), (0.46, "missed")])
def test_the_goal_is_judged_by_wall_over_ideal(wall_s: float, word: str) -> None:
    looks = [seen([Stretch(1.0, {})], wall_s, overlap) for overlap in (False, True)]
    assert section(looks, 1).endswith(f", {word}.")


def test_the_run_judges_gives_credit_and_learns_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none-needed-here")
    backend = prepare(config("http://127.0.0.1:1", 5)).backend
    assert backend.judges
    assert backend.every == 5
    assert backend.config.credit.share


@pytest.mark.slow
def test_a_small_run_counts_every_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none-needed-here")
    with spawn(Options(latency_s=0.01)) as server:
        one = look(server, 0.01, 5, ["behaviors.share=0.5"])
        assert one.calls.total() == server.bill()["requests"]
    assert {"act", "judge", "credit", "distil", "trial"} <= set(one.calls)
    assert one.drawn_s == pytest.approx(0.01 * one.calls.total())
    assert sum(stretch.seconds for stretch in one.stretches) == pytest.approx(one.wall_s, abs=0.1)
