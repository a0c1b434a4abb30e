"""What one machine carries: calls, episodes, sandbox runs, tokens; and where the one writer ends.

Most figures are CPU seconds of the process that does the work, turned into work per second of one
core, so other processes on the machine disturb them little. Takes about a minute.

    python -m benchmarks.guarantees.scale [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load, page
from benchmarks.guarantees import throughput
from benchmarks.peers.sandbox_ways import LIMITS, one_core, sandboxed, sandboxed_batch
from benchmarks.server.bill import Options
from benchmarks.server.loopback import spawn
from orchestry.core.config import validate
from orchestry.core.types import Completion, Message, Request
from orchestry.engine.run import train
from orchestry.models.ledger import Ledger
from orchestry.models.providers import open_provider
from orchestry.report.text import table
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Answered, Event, Journal, read
from orchestry.store.summary import books

COMMAND = "python -m benchmarks.guarantees.scale --write"
CALLS, EPISODES, PAIRS, SYNCED, RUNS, BATCH = 4000, 150, 10_000, 300, 400, 200
QUESTIONS, TOKENS = 8, 96
"""Of the embedded model; it decodes 8 together."""
LATENCIES_S = (1, 10)
PLAYED = {"task": "code_review", "provider": {"name": "fake"}, "cache": {"enabled": False}}


@dataclass(frozen=True, slots=True)
class Found:
    """CPU seconds per unit of work, unless a name says otherwise."""

    call: float
    """Gateway and provider: SDK, HTTP, keys, cache, ledger, journal."""
    gateway: float
    """The same without the provider."""
    episode: float
    """Of a whole run whose provider answers at once."""
    calls: float
    """Calls per episode of that run."""
    events: float
    """Journal events per call of that run."""
    bytes: float
    """Per event."""
    event: float
    """Appended to the journal."""
    synced_per_s: float
    """Events per second, each with an fsync; wall clock."""
    pair: float
    """A reservation and its settlement, with their events in the journal."""
    read: float
    """An event read again: checked, and added to the run's figures."""
    host: float
    """The host's part of a sandbox run."""
    server: float
    """The fork server's part of a sandbox run."""
    batch_per_s: float
    """Sandbox runs per second on all cores; wall clock."""
    token: float
    """Of the embedded model's answers."""

    @property
    def run(self) -> float:
        """A call of a run over HTTP: the run's part, and the provider's."""
        return self.episode / self.calls + self.call - self.gateway

    @property
    def writer(self) -> float:
        """What ledger and journal take of a call: its reservation, its settlement, and its part of
        the run's other events."""
        return self.pair + max(0.0, self.events - 2) * self.event


def below() -> float:
    """CPU seconds of the processes that this one started, and of all that they started."""
    lines = [_stat(path) for path in Path("/proc").glob("[0-9]*/stat")]
    parents = {int(line[0]): int(line[1]) for line in lines if line}
    ours, found = {os.getpid()}, set[int]()
    while ours:
        ours = {pid for pid, parent in parents.items() if parent in ours}
        found |= ours
    ticks = sum(sum(map(int, line[2:])) for line in lines if line and int(line[0]) in found)
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(path: Path) -> list[str]:
    """Process, parent, and ticks: its own and those of its children that ended; [] if it ended."""
    try:
        pid, _, rest = path.read_text(encoding="utf-8").partition(" ")
    except OSError:
        return []
    fields = rest.rpartition(")")[2].split()
    return [pid, fields[1], *fields[11:15]]


def per_unit(work: Callable[[], object], units: int) -> float:
    """CPU seconds of this process per unit."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / units


def played(folder: Path) -> tuple[dict[str, float], list[Event]]:
    """A run of the fake provider, and its events."""
    train(validate(PLAYED | {"episodes": 2}), folder / "warm")
    began = time.process_time()
    run = train(validate(PLAYED | {"episodes": EPISODES}), folder / "run")
    seconds, path = time.process_time() - began, folder / "run" / "journal.jsonl"
    events = list(read(path))
    calls = run.summary.calls
    return {
        "episode": seconds / EPISODES,
        "calls": calls / EPISODES,
        "events": len(events) / calls,
        "bytes": path.stat().st_size / len(events),
    }, events


def new_journal(folder: Path) -> Journal:
    """A journal in a new folder."""
    folder.mkdir()
    return Journal(folder / "journal.jsonl")


def journalled(folder: Path, events: Sequence[Event]) -> dict[str, float]:
    """The run's events written again, written with an fsync each, and read."""

    def append(name: str, count: int, sync: bool = False) -> None:
        with closing(new_journal(folder / name)) as journal:
            for event in events[:count]:
                journal.append(event)
                if sync:
                    journal.sync()

    count = len(events)
    written = per_unit(lambda: append("again", count), count)
    began = time.perf_counter()
    append("synced", SYNCED, sync=True)
    seconds = time.perf_counter() - began
    path = folder / "again" / "journal.jsonl"
    back = per_unit(lambda: books(read(path)), count)
    return {"event": written, "synced_per_s": SYNCED / seconds, "read": back}


async def reserved(folder: Path) -> float:
    """CPU seconds of a reservation under a cap and its settlement."""
    said = Completion(
        text="word " * 20, model="m", input_tokens=300, output_tokens=20, usd=1e-4, stop="end"
    )
    with closing(new_journal(folder / "ledger")) as journal:
        ledger = Ledger(1e6, journal, 0.8, print)
        began = time.process_time()
        for number in range(PAIRS):
            call = await ledger.reserve(f"anthropic-{number:064x}", 1e-3, rank=number % 32)
            ledger.settle(
                Answered(
                    call=call,
                    key=f"anthropic-{number:064x}",
                    agent="writer",
                    purpose="act",
                    source="provider",
                    completion=said,
                    at=time.time(),
                )
            )
        return (time.process_time() - began) / PAIRS


async def sandbox() -> dict[str, float]:
    """Host's and server's part of a run, one run after the other; then many at once."""
    with one_core():
        async with open_sandbox(LIMITS) as opened:
            await sandboxed(opened, RUNS // 10)
            before = below()
            timed = await sandboxed(opened, RUNS)
            server = below() - before
    async with open_sandbox(LIMITS) as opened:
        batch = await sandboxed_batch(opened, BATCH)
    return {
        "host": timed.host_s / RUNS,
        "server": server / RUNS,
        "batch_per_s": batch.rate,
    }


async def embedded() -> float:
    """CPU seconds per token of the embedded model's answers, prompts and HTTP included."""
    config = validate({"provider": {"name": "embedded"}}).provider
    with one_core():
        async with open_provider(config, 0, {}) as provider:

            async def ask(number: int) -> int:
                words = f"Write a story about the number {number}."
                request = Request(
                    agent="writer",
                    model=provider.model,
                    messages=(Message(role="user", content=words),),
                    max_tokens=TOKENS,
                    seed=number,
                )
                return (await provider.complete(request)).output_tokens

            await ask(0)
            began = time.process_time()
            tokens = sum(await asyncio.gather(*map(ask, range(1, QUESTIONS + 1))))
            return (time.process_time() - began) / tokens


def measure(folder: Path, url: str) -> Found:
    """Everything, one after the other."""
    asked = asyncio.run(throughput.measure(url, CALLS))
    run, events = played(folder)
    return Found(
        call=asked["end_to_end"]["cpu_ms"] / 1000,
        gateway=asked["gateway_alone"]["cpu_ms"] / 1000,
        pair=asyncio.run(reserved(folder)),
        token=asyncio.run(embedded()),
        **run,
        **journalled(folder, events),
        **asyncio.run(sandbox()),
    )


def coefficients(found: Found) -> str:
    """The first table."""

    def row(what: str, seconds: float) -> list[str]:
        return [what, f"{1 / seconds:,.0f}", f"{1000 * seconds:.3f}"]

    rows = [
        row("calls: gateway and provider, over HTTP", found.call),
        row("calls: gateway alone", found.gateway),
        row(f"episodes of a run, {found.calls:.0f} calls each, fake answers", found.episode),
        row("sandbox runs, host and server", found.host + found.server),
        row("tokens of the embedded model, 8 answers together", found.token),
        row(f"journal events appended ({found.bytes:,.0f} bytes)", found.event),
        row("journal events read again and added up", found.read),
        row("reservations with their settlements, in the journal", found.pair),
    ]
    return table(["what", "per second of one core", "ms CPU each"], rows)


def limits(found: Found) -> str:
    """Where one process and its writer end: the second table."""
    calls, alone = 1 / found.run, 1 / found.writer
    rows = [
        ["calls/s that one run's process carries, over HTTP", f"{calls:,.0f}"],
        *(
            [f"calls in flight then, where an answer takes {seconds} s", f"{calls * seconds:,.0f}"]
            for seconds in LATENCIES_S
        ),
        ["episodes/s then", f"{calls / found.calls:,.1f}"],
        ["journal events per call", f"{found.events:.2f}"],
        ["journal events/s then", f"{calls * found.events:,.0f}"],
        ["share of the process's time for ledger and journal", f"{found.writer / found.run:.0%}"],
        ["calls/s if the process did nothing but ledger and journal", f"{alone:,.0f}"],
        ["sandbox cores that one process keeps busy", f"{found.server / found.host:,.1f}"],
        [
            f"cores of the embedded model that draw answers of {TOKENS} tokens as fast",
            f"{found.token * TOKENS / found.run:,.0f}",
        ],
        ["seconds to read a million events again", f"{1e6 * found.read:,.0f}"],
    ]
    return table(["where one run ends", ""], rows)


def section(found: Found, others: float) -> str:
    """The section."""
    return "\n\n".join(
        [
            f"Each figure is CPU time of one process: {CALLS:,} calls of 1 kB to a server without "
            f"latency in another process, a run of {EPISODES} episodes of code_review whose fake "
            f"answers cost nothing, its events written and read again, {PAIRS:,} reservations, "
            f"{RUNS} sandbox runs of a function on 8 inputs, and {QUESTIONS} answers of at most "
            f"{TOKENS} tokens. Other processes took {others:.0%} of the machine's CPU time "
            "meanwhile.",
            coefficients(found),
            f"On the clock: {found.batch_per_s:,.0f} sandbox runs/s on all {os.cpu_count()} cores "
            f"with {BATCH} at once; {found.synced_per_s:,.0f} events/s if each were followed by an "
            "fsync, which a run does only at its end.",
            "A run's call over HTTP takes what the run without HTTP takes per call, and the "
            "provider's part. A sandbox run takes "
            f"{1000 * found.server:.2f} ms of the server's CPU and {1000 * found.host:.2f} ms of "
            "the host's; their ratio is the number of sandbox cores that one process can keep busy "
            "if it does nothing else.",
            limits(found),
        ]
    )


def main() -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, spawn(Options()) as server:
        before = load.read(server.pid)
        found = measure(Path(name), server.url)
        others = load.others(before, load.read(server.pid))
    text = section(found, others)
    print(text)
    if args.write:
        page.write("scale", COMMAND, text)


if __name__ == "__main__":
    main()
