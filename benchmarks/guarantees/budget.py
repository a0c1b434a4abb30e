"""The cap against the server's own bill, in runs with every kind of trouble.

Each run draws its vendor, concurrency, cap, prompts, answer lengths, token rule and faults from its
seed: 429, 503, 529 and 500, dropped connections, answers that never come and errors inside a 200,
before and after billing; answers without a count, and thoughts billed beside the answer. Some
runs die in the middle, as by kill -9, and are resumed from their journal. The provider, gateway,
ledger and journal are those of a paid run; the server bills a request when it arrives.

    python -m benchmarks.guarantees.budget [--runs N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import FAULTS, Loopback, serve
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import BudgetExceeded, ProviderError
from orchestry.core.types import Message, Request
from orchestry.models.gateway import Gateway, open_gateway
from orchestry.models.prices import price_table
from orchestry.models.providers import open_provider
from orchestry.store import journal
from orchestry.store.journal import HEAD, Journal

COMMAND = "python -m benchmarks.guarantees.budget --write"
MODEL = "claude-sonnet-5"
INPUT_USD, OUTPUT_USD = 2.0, 10.0
MAX_TOKENS = 64
TIMEOUT_S = 0.5
AT_ONCE = 6
"""Runs played side by side, since most of a run is waiting."""
TORN = b'{"kind":"reserved","call":9'


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, drawn from its seed."""

    seed: int
    concurrency: int
    cap_usd: float
    requests: tuple[Request, ...]
    samples: int
    options: Options
    kill_after: int | None
    """Requests that have reached the server when the process dies; None: it lives."""
    vendor: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the vendor and the ledger say in the end."""

    plan: Plan
    billed_usd: float
    ledger_usd: float
    worst_call_usd: float
    """The most that any one call of the run could cost."""
    capped: bool
    killed: bool
    faults: Counter[str]

    @property
    def left_calls(self) -> float:
        """What is left of the cap, in worst cases of the dearest call."""
        return (self.plan.cap_usd - self.ledger_usd) / self.worst_call_usd

    @property
    def within(self) -> bool:
        """The bill is within what the ledger charged, and that within the cap."""
        slack = 1 + 1e-9
        return self.billed_usd <= self.ledger_usd * slack <= self.plan.cap_usd * slack * slack


def draw(seed: int) -> Plan:
    rng = random.Random(seed)
    marked = rng.random() < 0.3
    samples = rng.randint(2, 5) if marked else rng.randint(1, 4)
    options = _options(rng, seed)
    size = 6000 if marked else rng.randint(50, 1500)  # the longer one is worth a cache entry
    requests = tuple(_request(rng, i, size) for i in range(rng.randint(8, 24)))
    calls = len(requests) * samples
    tokens = size / options.bytes_per_token
    output = options.output_tokens or MAX_TOKENS
    worst = (1.25 * size * INPUT_USD + MAX_TOKENS * OUTPUT_USD) / 1e6
    demand = calls * (tokens * INPUT_USD + output * OUTPUT_USD) / 1e6
    return Plan(
        seed=seed,
        concurrency=round(math.exp(rng.uniform(0, math.log(200)))),
        cap_usd=max(demand * rng.uniform(0.1, 1.2), worst * rng.uniform(0.5, 4.0)),
        requests=requests,
        samples=samples,
        options=options,
        kill_after=rng.randint(1, 1 + calls // 4) if rng.random() < 0.3 else None,
        vendor="anthropic" if marked else rng.choice(("anthropic", "openai")),
    )


def _options(rng: random.Random, seed: int) -> Options:
    total = rng.choice((0.0, 0.1, 0.3, 0.5))
    weights = [rng.random() for _ in FAULTS]
    shares: dict[str, Any] = {
        f: total * w / sum(weights) for f, w in zip(FAULTS, weights, strict=True)
    }
    shares["hang_billed"] *= 0.3  # each costs a whole timeout
    return Options(
        latency_s=rng.choice((0.0, 0.002, 0.01)),
        sigma=rng.choice((0.0, 1.0)),
        seed=seed,
        retry_after=rng.choice(("", "0,0.01")),
        output_tokens=rng.choice((0, 5, 20, 50)),
        bytes_per_token=rng.choice((1.0, 1.5, 4.0)),
        input_usd=INPUT_USD,
        output_usd=OUTPUT_USD,
        **shares,
    )


def _request(rng: random.Random, index: int, size: int) -> Request:
    alphabet = rng.choice(("abc ", "äöü ", "日本語 "))
    letters = "".join(rng.choices(alphabet, k=size))
    text = f"{index} {letters}".encode()[:size].decode("utf-8", "ignore")
    return Request(
        agent="writer",
        model=MODEL,
        messages=(Message(role="user", content=text),),
        max_tokens=MAX_TOKENS,
        seed=index,
    )


async def play(plan: Plan, folder: Path) -> Outcome:
    """The whole run, with its death and resume where the plan has one."""
    path = folder / "journal.jsonl"
    killed = False
    async with serve(plan.options) as (url, server):
        config = _config(plan, url)
        if plan.kill_after is not None:
            killed = await _process(plan, config, path, server) is None
        end = await _process(plan, config, path, None)
        assert end is not None
    spent, capped, worst = end
    bill = server.bill
    return Outcome(plan, bill.usd, spent, worst, capped, killed, bill.faults)


async def _process(
    plan: Plan, config: RunConfig, path: Path, mortal: Loopback | None
) -> tuple[float, bool, float] | None:
    """One process of the run: what the ledger spent, whether it stopped at the cap, and the
    worst case of the dearest call; None if it died.

    Death is the journal as it stands, with a line that was being written; whatever this process
    still writes while its calls are torn down is thrown away.
    """
    events = _events(path)
    log = Journal(path)
    environ = {f"{plan.vendor.upper()}_API_KEY": "none-needed-here"}
    image: bytes | None = None
    async with open_provider(config.provider, plan.seed, environ) as provider:
        prices = price_table(provider, config)
        async with open_gateway(config, provider, prices, log, events, on_warn=_quiet) as gateway:
            work = asyncio.create_task(_work(gateway, plan))
            if mortal is not None and await _reached(mortal, plan.kill_after or 0, work):
                image = _image(path)
                work.cancel()
            capped = (await asyncio.gather(work, return_exceptions=True))[0]
            spent = gateway.ledger.spent
        last = [r.model_copy(update={"sample_index": plan.samples - 1}) for r in plan.requests]
        bound = max(provider.input_bound(request) for request in last)
        worst = prices.worst(MODEL, bound, MAX_TOKENS, shared=True)
    log.close()
    if image is not None:
        _restore(path, image)
        return None
    if isinstance(capped, BaseException):
        raise capped
    return spent, capped, worst


def _events(path: Path) -> list[journal.Event]:
    return list(journal.read(path)) if path.exists() else []


def _image(path: Path) -> bytes:
    return path.read_bytes() + TORN


def _restore(path: Path, image: bytes) -> None:
    path.write_bytes(image)
    path.with_name(HEAD).unlink(missing_ok=True)  # it tells of what was thrown away


async def _reached(server: Loopback, requests: int, work: asyncio.Task[bool]) -> bool:
    """Whether so many requests came before the work was done."""
    while server.bill.requests < requests:
        if work.done():
            return False
        await asyncio.sleep(0.001)
    return not work.done()


async def _work(gateway: Gateway, plan: Plan) -> bool:
    """Asks for everything in batches, a failed one again; True where the cap stopped it."""
    half = len(plan.requests) // 2
    for batch in (plan.requests[:half], plan.requests[half:], plan.requests):
        try:
            await gateway.sample(batch, plan.samples)
        except ProviderError:
            continue
        except BudgetExceeded:
            return True
    return False


def _config(plan: Plan, url: str) -> RunConfig:
    return validate(
        {
            "provider": {
                "name": plan.vendor,
                "model": MODEL,
                "base_url": f"{url}/v1" if plan.vendor == "openai" else url,
                "timeout_s": TIMEOUT_S,
            },
            "budget": {"usd": plan.cap_usd},
            "cache": {"enabled": False},
            "search": {"concurrency": plan.concurrency},
            "retry": {"attempts": 5, "base_s": 0.002, "max_s": 0.02, "patience_s": 600.0},
            "seed": plan.seed,
        }
    )


def _quiet(line: str) -> None:
    if "bounds" in line:  # a bill above its reservation would be a fault of ours
        print(line, file=sys.stderr)


async def play_all(runs: int, first_seed: int) -> list[Outcome]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> Outcome:
        async with slots:
            with tempfile.TemporaryDirectory() as folder:
                return await play(draw(seed), Path(folder))

    return list(await asyncio.gather(*(one(first_seed + i) for i in range(runs))))


def result(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    capped = [o for o in outcomes if o.capped]
    faults: Counter[str] = sum((o.faults for o in outcomes), Counter())
    return {
        "runs": len(outcomes),
        "within_cap": sum(o.within for o in outcomes),
        "beyond_cap_seeds": [o.plan.seed for o in outcomes if not o.within],
        "ledger_below_bill_seeds": [
            o.plan.seed for o in outcomes if o.ledger_usd < o.billed_usd * (1 - 1e-9)
        ],
        "highest_bill_over_cap": max(o.billed_usd / o.plan.cap_usd for o in outcomes),
        "stopped_at_cap": len(capped),
        "mean_ledger_over_cap": mean(o.ledger_usd / o.plan.cap_usd for o in capped),
        "mean_bill_over_cap": mean(o.billed_usd / o.plan.cap_usd for o in capped),
        "most_left_in_worst_calls": max(o.left_calls for o in capped),
        "less_than_a_call_left": sum(o.left_calls < 1.0 for o in capped),
        "killed_and_resumed": sum(o.killed for o in outcomes),
        "concurrency": [f(o.plan.concurrency for o in outcomes) for f in (min, max)],
        "faults": dict(sorted(faults.items())),
        "seconds": round(seconds, 1),
    }


def section(found: dict[str, Any]) -> str:
    low, high = found["concurrency"]
    faults = ", ".join(f"{count:,} {name}" for name, count in found["faults"].items())
    return (
        f"The server's own bill was within the cap in **{found['within_cap']:,} of "
        f"{found['runs']:,}** randomised runs at concurrency {low} to {high}; the highest was "
        f"{found['highest_bill_over_cap']:.1%} of its cap. Faults met: {faults}. "
        f"{found['killed_and_resumed']} runs were cut off in the middle and resumed from their "
        "journal as it stood, with a torn last line.\n\n"
        f"The cap is used, not avoided: in {found['less_than_a_call_left']} of the "
        f"{found['stopped_at_cap']} runs that the cap stopped, less was left than the worst case "
        f"of one call, and at most {found['most_left_in_worst_calls']:.3f} of it. The ledger had "
        "charged "
        f"{found['mean_ledger_over_cap']:.1%} of the cap on "
        f"average, and the server had billed {found['mean_bill_over_cap']:.1%}: calls that were "
        "given up and may have been billed count at their worst case."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # it tells of dying clients
    began = time.perf_counter()
    outcomes = asyncio.run(play_all(args.runs, args.first_seed))
    found = result(outcomes, time.perf_counter() - began)
    print(json.dumps(found) if args.json else section(found))
    if args.write:
        page.write("budget", COMMAND, section(found))
    if found["within_cap"] < found["runs"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
