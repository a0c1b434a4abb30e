"""k samples of a prompt on a server with a prompt cache: what the leader-first schedule saves.

The loopback server caches marked prefixes as the vendor does: from the model's minimum on, for
five minutes since the last use, readable from the first byte of the answer that writes them. The
same states are asked three times through the real gateway and provider: all samples at once
without marks (naive), all at once with marks (cold), and one sample first (leader first). Dollars
are the server's own, at the prices that genai-prices has; the run's ledger must agree with them.

    python -m benchmarks.guarantees.prompt_cache [--states N] [--latency S] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import page
from benchmarks.guarantees.throughput import gateway_over
from benchmarks.server.bill import MTOK, Bill, Options
from benchmarks.server.loopback import serve
from benchmarks.stats import columns
from orchestry.core.config import RunConfig, validate
from orchestry.core.types import Completion, Message, Request
from orchestry.models.gateway import Gateway
from orchestry.models.providers import open_provider

COMMAND = "python -m benchmarks.guarantees.prompt_cache --write"
GOAL = 0.55
SAMPLES = 5
OUTPUT_TOKENS = 300
AT_ONCE = 8
"""States asked at the same time, as a run has episodes in flight."""
BYTES_PER_TOKEN = 4
FIRST_BYTE_SHARE = 0.25
SIGMA = 0.4
MODES = ("naive", "cold", "led")
WORDS = "each agent reads what the others wrote, then adds one step that a test can decide, and so "


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: a model with its published minimum, and prompts of so many tokens."""

    model: str
    minimum: int
    context: int = 3000
    system: int = 100
    """How many of them are the system prompt, which all states share."""


SETTINGS = (
    Setting("claude-opus-5", 512),
    Setting("claude-sonnet-5", 1024),
    Setting("claude-opus-4-7", 2048),
    Setting("claude-haiku-5-5", 4096),
    Setting("claude-sonnet-5", 1024, context=4000),
    Setting("claude-haiku-5-5", 4096, context=6000),
    Setting("claude-opus-5", 512, system=1500),
    Setting("claude-sonnet-5", 1024, system=1500),
)


@dataclass(frozen=True, slots=True)
class Played:
    """What one mode came to: the server's dollars, and seconds until a state's last sample."""

    usd: float
    input_usd: float
    state_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One setting in all modes."""

    setting: Setting
    states: int
    naive: Played
    cold: Played
    led: Played

    @property
    def whole(self) -> float:
        return self.led.usd / self.naive.usd

    @property
    def input(self) -> float:
        return self.led.input_usd / self.naive.input_usd

    @property
    def output_share(self) -> float:
        """Of the naive bill."""
        return 1 - self.naive.input_usd / self.naive.usd

    @property
    def enough(self) -> float:
        """Tokens of context from which on the whole bill meets the goal, other things equal.

        Solves (input * x + rest) / (x + rest) = GOAL for x, the naive dollars for input.
        """
        rest = self.naive.usd - self.naive.input_usd
        x = rest * (1 - GOAL) / (GOAL - self.input)
        return self.setting.context * x / self.naive.input_usd


def options(setting: Setting, latency_s: float) -> Options:
    """The server of one setting; prices hold for calls of this size."""
    from genai_prices import Usage, calc_price

    def usd(**tokens: int) -> float:
        usage = Usage(**tokens)
        return float(calc_price(usage, setting.model, provider_id="anthropic").total_price)

    context = setting.context
    base = usd(input_tokens=context)
    return Options(
        latency_s=latency_s,
        sigma=SIGMA,
        first_byte_share=FIRST_BYTE_SHARE,
        output_tokens=OUTPUT_TOKENS,
        bytes_per_token=BYTES_PER_TOKEN,
        input_usd=base * MTOK / context,
        output_usd=usd(output_tokens=context) * MTOK / context,
        cache_write=usd(input_tokens=context, cache_write_tokens=context) / base,
        cache_read=usd(input_tokens=context, cache_read_tokens=context) / base,
        cache_min_tokens=setting.minimum,
    )


def prompt(setting: Setting, state: int) -> Request:
    """One state's request: exactly `context` tokens, of which `system` are all states' own."""
    own = setting.context - setting.system
    texts = (_text("You are the writer.", setting.system), _text(f"State {state}.", own))
    system, user = texts
    return Request(
        agent="writer",
        model=setting.model,
        messages=(Message(role="system", content=system), Message(role="user", content=user)),
        max_tokens=2 * OUTPUT_TOKENS,
        seed=state,
    )


def _text(opening: str, tokens: int) -> str:
    size = BYTES_PER_TOKEN * tokens
    return f"{opening} {WORDS * (1 + size // len(WORDS))}"[:size]


async def samples(gateway: Gateway, mode: str, request: Request) -> list[Completion]:
    """The k samples of one state, asked as `mode` says."""
    if mode == "led":
        return (await gateway.sample([request], SAMPLES))[0]
    asked = [request.model_copy(update={"sample_index": j}) for j in range(SAMPLES)]
    return await asyncio.gather(*(gateway.answer(r, shared=mode == "cold") for r in asked))


async def play(setting: Setting, mode: str, states: int, latency_s: float) -> Played:
    """All states in one mode, against a server as new."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        async with serve(options(setting, latency_s)) as (url, server):
            config = _config(setting, url)
            environ = {"ANTHROPIC_API_KEY": "none-needed-here"}
            async with (
                open_provider(config.provider, 0, environ) as provider,
                gateway_over(provider, config, Path(name)) as gateway,
            ):
                places = asyncio.Semaphore(AT_ONCE)

                async def one(state: int) -> None:
                    async with places:
                        began = time.perf_counter()
                        await samples(gateway, mode, prompt(setting, state))
                        seconds.append(time.perf_counter() - began)

                await asyncio.gather(*(one(state) for state in range(states)))
                _agree(gateway.ledger.spent, server.bill)
            return _played(server.bill, seconds)


def _config(setting: Setting, url: str) -> RunConfig:
    return validate(
        {
            "provider": {"name": "anthropic", "model": setting.model, "base_url": url},
            "cache": {"enabled": False},
            "search": {"concurrency": AT_ONCE * SAMPLES},
            "budget": {"usd": 1e6},
        }
    )


def _agree(spent: float, bill: Bill) -> None:
    """Raises RuntimeError where the ledger and the server count different dollars."""
    if not math.isclose(spent, bill.usd, rel_tol=1e-6):
        raise RuntimeError(f"the ledger counts ${spent:.9f}, the server ${bill.usd:.9f}")


def _played(bill: Bill, seconds: Sequence[float]) -> Played:
    output_usd = bill.output_tokens * bill.options.output_usd / MTOK
    return Played(bill.usd, bill.usd - output_usd, statistics.median(seconds))


async def measure(setting: Setting, states: int, latency_s: float) -> Row:
    """One row: the three modes beside one another, each with a server and a gateway of its own."""
    played = await asyncio.gather(*(play(setting, mode, states, latency_s) for mode in MODES))
    return Row(setting, states, *played)


def report(rows: Sequence[Row], latency_s: float) -> str:
    """The section's text."""
    states = rows[0].states
    lines = [
        f"{states} states, {AT_ONCE} at once, k = {SAMPLES}, {OUTPUT_TOKENS} tokens per answer, "
        f"lognormal latency of median {latency_s:g} s and sigma {SIGMA:g}, the first byte after "
        f"{FIRST_BYTE_SHARE:.0%} of it. Naive: all samples at once, nothing marked. Cold: all at "
        "once, marked. Leader first: what a run does. Dollars are the server's own at real "
        "prices, and the run's ledger agreed with each bill. Input alone leaves the answers out, "
        "which no cache makes cheaper.",
        "",
        columns([*map(_cells, rows)]),
        "",
        *map(_verdict, rows),
    ]
    return "\n".join(lines)


def _cells(row: Row) -> dict[str, str]:
    one = row.setting
    return {
        "model": one.model,
        "minimum prefix": f"{one.minimum:,}",
        "context": f"{one.context:,}",
        "of it shared by all states": f"{one.system:,}",
        "naive, $ per state": f"{row.naive.usd / row.states:.5f}",
        "answers' share of it": f"{row.output_share:.0%}",
        "cold / naive": f"{row.cold.usd / row.naive.usd:.3f}",
        "**leader first / naive**": f"**{row.whole:.3f}**",
        "input alone": f"{row.input:.3f}",
        "s per state, naive": f"{row.naive.state_s:.1f}",
        "s per state, leader first": f"{row.led.state_s:.1f}",
    }


def _verdict(row: Row) -> str:
    one = row.setting
    name = f"- {one.model}, {one.context:,} tokens, {one.system:,} of them shared by all states"
    if row.whole > 0.999:
        return f"{name}: below the model's minimum, so nothing is marked, and nothing costs more."
    whole = "met" if row.whole <= GOAL else "missed"
    alone = "met" if row.input <= GOAL else "missed"
    return (
        f"{name}: goal of {GOAL} {whole} on the whole bill ({row.whole:.3f}), {alone} on input "
        f"alone ({row.input:.3f}); the whole bill meets it from {row.enough:,.0f} tokens on."
    )


def main() -> None:
    """Measures all settings, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--states", type=int, default=24)
    parser.add_argument("--latency", type=float, default=4.0, help="median seconds of an answer")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    rows = []
    for setting in SETTINGS:
        rows.append(asyncio.run(measure(setting, args.states, args.latency)))
        print(f"{setting}: {rows[-1].whole:.3f}", file=sys.stderr)
    body = report(rows, args.latency)
    print(body)
    if args.write:
        page.write("prompt_cache", COMMAND, body)


if __name__ == "__main__":
    main()
