"""A server on 127.0.0.1 that speaks the Messages API and chat completions, and keeps its own bill.

A request is billed when it arrives: what happens to it afterwards (a fault, a client that leaves)
does not change the charge, which is the hardest case for the client's ledger. GET /bill answers
the bill as JSON, POST /reset clears it together with the prompt cache.

A structured request (output_config, response_format) is answered by a random instance of its
schema, or refused as the vendor refuses it.

Left out: tool use, thinking, token counting, and OpenAI's automatic prompt cache.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.server import structured, wire
from benchmarks.server.bill import Bill, Options, Prompt, PromptCache, Usage, measure

ROOT = Path(__file__).resolve().parents[2]
STATUS = {
    "rate_limited": 429,
    "overloaded": 529,
    "error": 500,
    "error_billed": 500,
    "busy_billed": 503,
    "limited_billed": 429,
    "bad_request": 400,
    "not_found": 404,
}
ERROR_KIND = {
    400: "invalid_request_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
PAGES = {
    "html": (b"<html><title>Bad gateway</title></html>", "text/html"),
    "malformed_billed": (b'{"id": "msg_1", "content": [{"te', "application/json"),
    "empty_billed": (b"", "application/json"),
    "failure_in_200": (
        b'{"type": "error", "error": {"type": "rate_limit_error", "code": 429, "message": "busy"}}',
        "application/json",
    ),
}
"""Bodies of a 200 that is no answer."""
UNBILLED = ("rate_limited", "overloaded", "error", "drop", "html", "bad_request", "not_found")
BILLED = (
    *("error_billed", "drop_billed", "hang_billed", "malformed_billed", "empty_billed"),
    *("busy_billed", "limited_billed", "failure_in_200"),
)
ANSWERED = ("uncounted", "thinking")
"""Whole answers whose usage is not in the form that the vendor documents."""
FAULTS = (*UNBILLED, *BILLED, *ANSWERED)
MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Answer:
    """One charged request's answer."""

    model: str
    body_hash: str
    texts: list[str]
    usage: Usage
    full: bool
    """Whether max_tokens cut it."""

    def whole(self, path: str) -> bytes:
        if path == CHAT:
            stop = "length" if self.full else "stop"
            return wire.chat(self.model, self.body_hash, self.texts, self.usage, stop=stop)
        stop = "max_tokens" if self.full else "end_turn"
        return wire.message(self.model, self.body_hash, self.texts[0], self.usage, stop=stop)

    def events(self, path: str, *, with_usage: bool) -> Iterator[bytes]:
        if path == CHAT:
            stop = "length" if self.full else "stop"
            return wire.chat_events(
                self.model, self.body_hash, self.texts, self.usage, stop=stop, with_usage=with_usage
            )
        stop = "max_tokens" if self.full else "end_turn"
        return wire.message_events(self.model, self.body_hash, self.texts[0], self.usage, stop=stop)


class Loopback:
    """The handler of one server. Everything drawn comes from the seed, in order of arrival."""

    def __init__(self, options: Options) -> None:
        if sum(getattr(options, fault) for fault in FAULTS) > 1:
            raise ValueError("the fault shares sum to more than 1")
        self.options = options
        self._shares = [(f, share) for f in FAULTS if (share := getattr(options, f))]
        self.refuse: Callable[[float], Awaitable[None]] | None = None
        """Closes the port for so many seconds; whoever listens for this server sets it."""
        self._closing: asyncio.Task[None] | None = None
        self.reset()

    def reset(self) -> None:
        """A server as new: empty bill, cold prompt cache, the seed's first draw next."""
        self.bill = Bill(self.options)
        self._cache = PromptCache(self.options.cache_ttl_s, self.options.cache_min_tokens)
        self._random = random.Random(self.options.seed)
        self._back = 0.0
        self._script = [fault for fault in self.options.script.split(",") if fault]

    def heal(self) -> None:
        """No more faults; the bill stays."""
        self.options = Options()
        self._shares, self._script, self._back = [], [], 0.0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request that reaches the server."""
        if request.path in (MESSAGES, CHAT):
            return await self._timed(request)
        if request.path == "/bill":
            return _json(json.dumps(self.bill.as_json()).encode())
        if request.path == "/reset":
            self.reset()
            return _json(b"{}")
        return _json(wire.error("not_found_error", request.path), status=404)

    async def _timed(self, request: web.BaseRequest) -> web.StreamResponse:
        data = await request.read()
        body_hash = hashlib.sha256(data).hexdigest()[:24]
        bill = self.bill
        bill.arrive(body_hash, time.monotonic())
        try:
            if self._away():
                return self._fail(request, "away")
            return await self._answer(request, data, body_hash)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return _json(wire.error("invalid_request_error", repr(error)), status=400)
        finally:
            bill.leave(time.monotonic())

    def _away(self) -> bool:
        """Whether the server is away, or goes away with this request."""
        options = self.options
        if options.away_at and self.bill.requests == options.away_at:
            self._back = time.monotonic() + options.away_s
            if not options.away_status and self.refuse is not None:
                self._closing = asyncio.ensure_future(self.refuse(options.away_s))
        away = time.monotonic() < self._back
        if away:
            self.bill.faults["away"] += 1
        return away

    async def _answer(
        self, request: web.BaseRequest, data: bytes, body_hash: str
    ) -> web.StreamResponse:
        body = json.loads(data)
        fault, delay_s = self._draw_fault(), self._draw_latency()
        if self.options.poison and self.options.poison.encode() in data:
            fault = "bad_request"
            self.bill.faults[fault] += 1
        self.bill.wait(delay_s)
        if fault in UNBILLED:
            await asyncio.sleep(delay_s)
            return self._fail(request, fault)
        schema = structured.schema_of(body)
        if schema is not None:
            structured.check(schema, claude=request.path == MESSAGES)
        marked = request.path == MESSAGES and b'"cache_control"' in data
        prompt = measure(body, self.options.bytes_per_token, marked=marked)
        answer = self._charge(body, body_hash, prompt, fault)
        fault = None if fault in ANSWERED else fault
        if fault == "hang_billed":
            await asyncio.Event().wait()  # cancelled when the client leaves
        if body.get("stream") and fault in (None, "drop_billed"):
            return await self._stream(request, body, answer, prompt, delay_s, fault)
        await asyncio.sleep(delay_s)
        if fault == "drop_billed":
            return await _break_off(request, answer.whole(request.path))
        if fault:
            return self._fail(request, fault)
        self._cache.show(prompt, time.monotonic())
        return _json(answer.whole(request.path))

    async def _stream(
        self,
        request: web.BaseRequest,
        body: dict[str, Any],
        answer: Answer,
        prompt: Prompt,
        delay_s: float,
        fault: str | None,
    ) -> web.StreamResponse:
        """Sends the opening after the first share of the latency and the rest after all of it."""
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = answer.events(request.path, with_usage=with_usage)
        first_s = delay_s * self.options.first_byte_share
        await asyncio.sleep(first_s)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        self._cache.show(prompt, time.monotonic())
        await response.write(next(events))
        await asyncio.sleep(delay_s - first_s)
        if fault:
            return self._fail(request, fault)
        await response.write(b"".join(events))
        await response.write_eof()
        return response

    def _charge(
        self, body: dict[str, Any], body_hash: str, prompt: Prompt, fault: str | None
    ) -> Answer:
        """Writes and bills an answer: a pure function of the body and of the cache's state."""
        model = str(body["model"])
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 4096)
        text, length = self.write(body, body_hash, limit)
        n = int(body.get("n") or 1)
        texts = [text] if n == 1 else [f"{i} {text}" for i in range(n)]
        read, write = self._cache.split(prompt, time.monotonic())
        thoughts = n * min(limit - length, 2 * length) if fault == "thinking" else 0
        output = math.ceil((n * length + thoughts) * self.options.overbilled)
        told = fault != "uncounted"
        usage = Usage(prompt.tokens - read - write, output, write, read, thoughts, told)
        self.bill.charge(body_hash, usage)
        return Answer(model, body_hash, texts, usage, full=length == limit)

    def write(self, body: dict[str, Any], body_hash: str, limit: int) -> tuple[str, int]:
        """An answer's text and its length in tokens, at most `limit`."""
        schema = structured.schema_of(body)
        if schema is None:
            sigma, length = self.options.output_sigma, self.options.output_tokens or limit
            if sigma:
                length = math.ceil(length * math.exp(random.Random(body_hash).gauss(0, sigma)))
            length = min(limit, length)
            return self.options.answer.replace("{text}", wire.filler(body_hash, length)), length
        text = structured.answer(schema, body_hash)
        size = self.options.bytes_per_token
        return text[: int(limit * size)], min(limit, math.ceil(len(text) / size))

    def _draw_fault(self) -> str | None:
        if self._script:
            fault = self._script.pop(0)
            self.bill.faults[fault] += fault != "-"
            return None if fault == "-" else fault
        place = self._random.random()
        for fault, share in self._shares:
            if place < share:
                self.bill.faults[fault] += 1
                return fault
            place -= share
        return None

    def _draw_latency(self) -> float:
        if self.options.sigma == 0:
            return self.options.latency_s
        return self.options.latency_s * math.exp(self._random.gauss(0, self.options.sigma))

    def _fail(self, request: web.BaseRequest, fault: str) -> web.Response:
        """Closes the connection for a drop; answers page or status of any other fault."""
        if fault in PAGES:
            body, kind = PAGES[fault]
            return web.Response(body=body, content_type=kind)
        status = self.options.away_status if fault == "away" else STATUS.get(fault, 0)
        if not status:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        headers = {}
        if status in (429, 529) and self.options.retry_after:
            headers["retry-after"] = self._random.choice(self.options.retry_after.split(","))
        return _json(
            wire.error(ERROR_KIND.get(status, "api_error"), fault), status=status, headers=headers
        )


async def _break_off(request: web.BaseRequest, data: bytes) -> web.StreamResponse:
    """The first half of an answer, and then a closed connection."""
    response = web.StreamResponse(headers={"content-type": "application/json"})
    response.content_length = len(data)
    await response.prepare(request)
    await response.write(data[: len(data) // 2])
    if request.transport is not None:
        request.transport.close()
    return response


def _json(data: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=data, status=status, headers={"content-type": "application/json"} | (headers or {})
    )


@asynccontextmanager
async def serve(
    options: Options, port: int = 0, kind: Callable[[Options], Loopback] = Loopback
) -> AsyncIterator[tuple[str, Loopback]]:
    """Serves in this process and event loop; gives the URL and the handler with its bill.

    `kind` makes the handler, for a server whose answers are not filler.
    """
    loopback = kind(options)
    server = web.Server(loopback.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024)

    async def refuse(seconds: float) -> None:
        nonlocal site
        await site.stop()
        await asyncio.sleep(seconds)
        site = web.TCPSite(runner, host, bound, backlog=1024)
        await site.start()

    try:
        await site.start()
        host, bound = runner.addresses[0][:2]
        loopback.refuse = refuse
        yield f"http://{host}:{bound}", loopback
    finally:
        await runner.cleanup()


@dataclass(frozen=True, slots=True)
class Spawned:
    """A loopback server in its own process."""

    url: str
    pid: int

    def bill(self) -> dict[str, Any]:
        """Its bill so far, as GET /bill answers it."""
        with urllib.request.urlopen(f"{self.url}/bill", timeout=30) as answer:
            return dict(json.load(answer))

    def reset(self) -> None:
        """Clears bill, prompt cache and draws."""
        urllib.request.urlopen(f"{self.url}/reset", data=b"", timeout=30).close()


@contextmanager
def spawn(options: Options) -> Iterator[Spawned]:
    """Serves in a new process; ends it by its pid, and it ends by itself if this process dies."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.server.loopback",
        "--until-eof",
        *to_flags(options),
    ]
    process = subprocess.Popen(  # its standard input stays open as long as this process lives
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the loopback server ended with code {process.wait()}")
        yield Spawned(url, process.pid)
    finally:
        process.terminate()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def to_flags(options: Options) -> list[str]:
    """The command line that makes these options."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(options).items()]


async def _serve_forever(options: Options, port: int, *, until_eof: bool) -> None:
    async with serve(options, port) as (url, _):
        print(url, flush=True)
        ended = asyncio.Event()
        if until_eof:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
        await ended.wait()


def main(argv: list[str] | None = None) -> None:
    """Serves until ended; the first line of output is the URL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input closes")
    for item in fields(Options):
        flag = f"--{item.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(item.default), default=item.default)
    args = vars(parser.parse_args(argv))
    port, until_eof = args.pop("port"), args.pop("until_eof")
    asyncio.run(_serve_forever(Options(**args), port, until_eof=until_eof))


if __name__ == "__main__":
    main()
