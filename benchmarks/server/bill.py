"""What the loopback server charges: its options, its token rule, its prompt cache and its bill.

The bill is the vendor's side of the ledger's story, so nothing here imports orchestry.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MTOK = 1_000_000
MAX_MARKS = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How the server behaves. Fault shares are of all requests, and together at most 1."""

    latency_s: float = 0.0
    """Median seconds until an answer is whole."""
    sigma: float = 0.0
    """Sigma of a lognormal latency; 0 is constant."""
    first_byte_share: float = 0.2
    """Share of the latency after which a streamed answer starts."""
    seed: int = 0
    """Of latencies and faults, drawn in order of arrival."""
    rate_limited: float = 0.0
    """Share answered 429; not billed."""
    overloaded: float = 0.0
    """Share answered 529; not billed."""
    error: float = 0.0
    """Share answered 500; not billed."""
    error_billed: float = 0.0
    """Share answered 500 although billed."""
    drop: float = 0.0
    """Share whose connection is closed without an answer; not billed."""
    drop_billed: float = 0.0
    """Share billed whose connection is closed; a stream breaks off in the middle."""
    hang_billed: float = 0.0
    """Share billed and never answered."""
    html: float = 0.0
    """Share answered 200 with a proxy's page; not billed."""
    bad_request: float = 0.0
    """Share answered 400; not billed."""
    not_found: float = 0.0
    """Share answered 404; not billed."""
    malformed_billed: float = 0.0
    """Share billed and answered 200 with JSON that breaks off."""
    empty_billed: float = 0.0
    """Share billed and answered 200 with nothing."""
    busy_billed: float = 0.0
    """Share answered 503 although billed, as by a gateway before the vendor."""
    limited_billed: float = 0.0
    """Share answered 429 although billed."""
    failure_in_200: float = 0.0
    """Share billed and answered 200 with an error inside."""
    uncounted: float = 0.0
    """Share answered without their count: usage is missing or {}, in a stream at its end."""
    thinking: float = 0.0
    """Share whose thoughts are billed too, in chats beside `completion_tokens`."""
    overbilled: float = 1.0
    """An answer is billed so many times its tokens, and says so."""
    script: str = ""
    """Comma-separated faults of the first requests, in order of arrival; '-' is none."""
    poison: str = ""
    """Every request that holds this text is answered 400; '': none."""
    away_at: int = 0
    """The request with which the server goes away, counted from 1; 0: never."""
    away_s: float = 0.0
    """How long it stays away, in seconds."""
    away_status: int = 0
    """What it answers meanwhile, unbilled; 0: nothing, and connections are refused."""
    retry_after: str = ""
    """Comma-separated seconds, drawn for each 429 and 529; '' sends no retry-after."""
    answer: str = "{text}"
    """Template of an answer; {text} is filler that follows from the request alone."""
    output_tokens: int = 20
    """Length of an answer, if max_tokens allows; 0 is max_tokens."""
    output_sigma: float = 0.0
    """Sigma of a lognormal length with that median, drawn by the request's body; 0 is constant."""
    bytes_per_token: float = 4.0
    """Token rule, at least 1: ceil(bytes of all prompt text / bytes_per_token)."""
    input_usd: float = 1.0
    """Dollars per million input tokens."""
    output_usd: float = 5.0
    """Dollars per million output tokens."""
    cache_write: float = 1.25
    """Price of a cache-written token, in input tokens."""
    cache_read: float = 0.1
    """Price of a token read from the cache, in input tokens."""
    cache_ttl_s: float = 300.0
    """Seconds a prompt cache entry lives after its last use."""
    cache_min_tokens: int = 1024
    """Shortest prefix that is cached."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. `input` counts what was neither written to nor read from the cache."""

    input: int
    output: int
    write: int = 0
    read: int = 0
    thoughts: int = 0
    """Those of the output that a chat counts beside its answer."""
    told: bool = True
    """Whether the answer says its counts."""

    @property
    def total_input(self) -> int:
        return self.input + self.write + self.read


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens, and its marked prefixes as (key, tokens), shortest first."""

    tokens: int
    prefixes: tuple[tuple[bytes, int], ...] = ()


class MarkError(ValueError):
    """More cache_control marks than the vendor takes."""


def measure(body: Mapping[str, Any], bytes_per_token: float, *, marked: bool) -> Prompt:
    """Counts a Messages or chat request; follows cache_control marks where `marked`.

    Raises MarkError beyond four marks.
    """
    digest = hashlib.sha256(str(body.get("model")).encode())
    size = 0
    prefixes = []
    for role, text, mark in _blocks(body):
        data = text.encode()
        size += len(data)
        if marked:
            digest.update(b"%b %d " % (role.encode(), len(data)) + data)
            if mark:
                prefixes.append((digest.digest(), math.ceil(size / bytes_per_token)))
    tokens = math.ceil(size / bytes_per_token)
    if marked and body.get("cache_control"):
        prefixes.append((digest.digest(), tokens))
    if len(prefixes) > MAX_MARKS:
        raise MarkError(f"A maximum of {MAX_MARKS} blocks with cache_control may be provided.")
    return Prompt(tokens, tuple(prefixes))


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(place, text, marked) of every block, in the vendor's order: tools, system, messages.

    The form of a structured answer is prompt too: it is billed, and a prefix's entry is its own.
    """
    for place in ("output_config", "response_format"):
        if form := body.get(place):
            yield place, json.dumps(form), False
    for tool in body.get("tools", ()):
        yield "tool", json.dumps(tool), "cache_control" in tool
    yield from _content("system", body.get("system", ""))
    for message in body["messages"]:
        yield from _content(message["role"], message["content"])


def _content(role: str, content: Any) -> Iterator[tuple[str, str, bool]]:
    if isinstance(content, str):
        yield role, content, False
        return
    for block in content or ():
        text = block["text"] if block.get("type") == "text" else json.dumps(block)
        yield role, text, bool(block.get("cache_control"))


class PromptCache:
    """Marked prefixes, each visible from the first byte of the answer that wrote it."""

    def __init__(self, ttl_s: float, min_tokens: int) -> None:
        self._ttl_s = ttl_s
        self._min_tokens = min_tokens
        self._expires: dict[bytes, float] = {}

    def split(self, prompt: Prompt, now: float) -> tuple[int, int]:
        """(read, written) tokens of a request that arrives now; a hit renews its entry."""
        marked = [p for p in prompt.prefixes if p[1] >= self._min_tokens]
        hit = next((p for p in reversed(marked) if self._expires.get(p[0], 0.0) > now), None)
        read = hit[1] if hit else 0
        if hit:
            self._expires[hit[0]] = now + self._ttl_s
        return read, max((tokens for _, tokens in marked), default=read) - read

    def show(self, prompt: Prompt, now: float) -> None:
        """The first byte leaves: later requests find this prompt's prefixes."""
        for key, tokens in prompt.prefixes:
            if tokens >= self._min_tokens:
                self._expires[key] = now + self._ttl_s


@dataclass(slots=True)
class Bill:
    """Everything that was asked and charged since the start or the last reset."""

    options: Options
    usd: float = 0.0
    requests: int = 0
    billed_requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    latency_total_s: float = 0.0
    latency_max_s: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    billed: Counter[str] = field(default_factory=Counter)

    def arrive(self, body_hash: str, now: float) -> None:
        self.first_at = self.first_at or now
        self.requests += 1
        self.seen[body_hash] += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)

    def leave(self, now: float) -> None:
        self.in_flight -= 1
        self.last_at = now

    def wait(self, seconds: float) -> None:
        """Notes a drawn latency, so that a benchmark can compute its ideal."""
        self.latency_total_s += seconds
        self.latency_max_s = max(self.latency_max_s, seconds)

    def charge(self, body_hash: str, usage: Usage) -> None:
        prices = self.options
        weighted = usage.input + usage.write * prices.cache_write + usage.read * prices.cache_read
        self.usd += (weighted * prices.input_usd + usage.output * prices.output_usd) / MTOK
        self.billed_requests += 1
        self.billed[body_hash] += 1
        self.input_tokens += usage.total_input
        self.output_tokens += usage.output
        self.cache_write_tokens += usage.write
        self.cache_read_tokens += usage.read

    def as_json(self) -> dict[str, Any]:
        """What GET /bill answers; `by_body_hash` maps a hash to [requests, billed requests]."""
        skipped = ("options", "seen", "billed", "first_at", "last_at")
        plain = {k: getattr(self, k) for k in self.__slots__ if k not in skipped}
        plain["span_s"] = max(0.0, self.last_at - self.first_at)
        plain["by_body_hash"] = {k: [n, self.billed[k]] for k, n in self.seen.items()}
        return plain
