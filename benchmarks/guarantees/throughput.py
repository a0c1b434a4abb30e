"""Calls per second of one process, end to end, with cache, ledger and journal on.

The loopback server has no latency and runs in a process of its own. The same requests then go
through the provider alone, and through the gateway over a provider that answers at once, so that
the CPU time of a call can be told apart.

    python -m benchmarks.guarantees.throughput [--calls N] [--patience S] [--json] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks import load, page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import spawn
from orchestry.core.config import RunConfig, validate
from orchestry.core.types import Completion, Message, Policy, Provider, Request
from orchestry.models.gateway import Gateway, open_gateway
from orchestry.models.prices import price_table
from orchestry.models.providers import open_provider
from orchestry.report.text import table
from orchestry.store.journal import Journal

COMMAND = "python -m benchmarks.guarantees.throughput --write"
MODEL = "claude-haiku-5-5"
SAMPLES = 4
CONCURRENCY = 32
GOAL = 600


class Instant:
    """A provider that answers at once: what is left is the gateway's own time."""

    name, base_url, model = "anthropic", "", MODEL
    deterministic, cacheable, bills_unanswered = False, True, True
    slots: int | None = None

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        await asyncio.sleep(0)
        return Completion(text="word " * 20, model=MODEL, input_tokens=300, output_tokens=20)

    def input_bound(self, request: Request) -> int:
        return sum(len(message.content) for message in request.messages)

    def leads(self, request: Request) -> bool:
        return False

    async def __aenter__(self) -> Instant:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


class Direct:
    """A Policy that asks the provider without anything between."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.slots = asyncio.Semaphore(CONCURRENCY)

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        async def one(request: Request, j: int) -> Completion:
            async with self.slots:
                return await self.provider.complete(request.model_copy(update={"sample_index": j}))

        flat = await asyncio.gather(*(one(r, j) for r in requests for j in range(n)))
        return [flat[i * n : (i + 1) * n] for i in range(len(requests))]


def make_requests(count: int, tag: str) -> list[Request]:
    """Distinct prompts of 1 kB."""
    system = Message(role="system", content="You review code. " * 30)
    return [
        Request(
            agent="writer",
            model=MODEL,
            messages=(system, Message(role="user", content=f"{tag} {i}: " + "text " * 100)),
            max_tokens=256,
            seed=i,
        )
        for i in range(count)
    ]


async def timed(policy: Policy, calls: int) -> dict[str, float]:
    """Calls per second, and milliseconds of this process's CPU time per call."""
    await policy.sample(make_requests(50, "warm up"), SAMPLES)
    requests = make_requests(calls // SAMPLES, "ask")
    began, cpu = time.perf_counter(), _cpu()
    await policy.sample(requests, SAMPLES)
    seconds, used = time.perf_counter() - began, _cpu() - cpu
    asked = len(requests) * SAMPLES
    return {"calls_per_s": asked / seconds, "cpu_ms": 1000 * used / asked}


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@asynccontextmanager
async def gateway_over(
    provider: Provider, config: RunConfig, folder: Path
) -> AsyncIterator[Gateway]:
    journal = Journal(folder / "journal.jsonl")
    try:
        async with open_gateway(
            config, provider, price_table(provider, config), journal, [], on_warn=print
        ) as gateway:
            yield gateway
    finally:
        journal.close()


def config_for(url: str, folder: Path) -> RunConfig:
    return validate(
        {
            "provider": {"name": "anthropic", "model": MODEL, "base_url": url},
            "cache": {"dir": folder / "cache"},
            "search": {"concurrency": CONCURRENCY},
            "budget": {"usd": 1e6},
        }
    )


async def measure(url: str, calls: int) -> dict[str, dict[str, float]]:
    found = {}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        whole, bare = Path(one), Path(two)
        config = config_for(url, whole)
        environ = {"ANTHROPIC_API_KEY": "none-needed-here"}
        async with open_provider(config.provider, 0, environ) as provider:
            async with gateway_over(provider, config, whole) as gateway:
                found["end_to_end"] = await timed(gateway, calls)
            found["provider_alone"] = await timed(Direct(provider), calls)
        async with gateway_over(Instant(), config_for(url, bare), bare) as gateway:
            found["gateway_alone"] = await timed(gateway, calls)
    return found


def section(found: dict[str, dict[str, float]], calls: int, others: float) -> str:
    names = {
        "end_to_end": "gateway and provider",
        "provider_alone": "provider alone (SDK and HTTP)",
        "gateway_alone": "gateway alone (keys, cache, ledger, journal, retry)",
    }
    rows = [
        [title, f"{found[name]['calls_per_s']:,.0f}", f"{found[name]['cpu_ms']:.2f}"]
        for name, title in names.items()
    ]
    rate = found["end_to_end"]["calls_per_s"]
    verdict = "met" if rate >= GOAL else "missed"
    return "\n".join(
        [
            f"One process, {calls:,} calls of 1 kB, {CONCURRENCY} at once, server in another "
            "process on the same machine, without latency.",
            "",
            table(["what runs", "calls/s", "ms CPU per call"], rows),
            "",
            f"Goal of {GOAL} calls/s end to end: {verdict}. Other processes took {others:.0%} of "
            "the machine's CPU time meanwhile.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=6000)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for quiet")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    with spawn(Options()) as server:
        load.wait(args.patience)
        before = load.read(server.pid)
        found: dict[str, Any] = asyncio.run(measure(server.url, args.calls))
        others = load.others(before, load.read(server.pid))
    text = section(found, args.calls, others)
    print(json.dumps(found | {"others": others}) if args.json else text)
    if args.write:
        page.write("throughput", COMMAND, text)


if __name__ == "__main__":
    main()
