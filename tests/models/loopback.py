"""A real HTTP server in the test process that answers exactly the bytes a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Answer = bytes | None
"""Raw bytes, after which the connection closes; None never answers."""


@dataclass
class Server:
    """What a test sees of the server."""

    url: str
    paths: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)


def reply(body: object, status: int = 200, **headers: str) -> bytes:
    """An HTTP answer; `body` is bytes, or what becomes JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}", "connection: close"]
    given = {"content_type": "application/json", **headers}
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def events(*items: dict[str, Any]) -> bytes:
    """An answer of server-sent events, in Anthropic's form."""
    text = "".join(f"event: {item['type']}\ndata: {json.dumps(item)}\n\n" for item in items)
    return reply(text.encode(), content_type="text/event-stream")


@asynccontextmanager
async def serving(
    answer: Callable[[int], Answer] | Answer, wait_s: Callable[[int], float] = lambda number: 0.0
) -> AsyncIterator[Server]:
    """Serves one answer to all, or what `answer` makes of the request's number, from 0, after
    `wait_s` of that number."""
    server = Server("")
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next(line for line in head.lower().split("\r\n") if "content-length" in line)
        body = await reader.readexactly(int(length.partition(":")[2]))
        number = len(server.bodies)
        server.paths.append(head.split()[1])
        server.heads.append(head)
        server.bodies.append(json.loads(body))
        data = answer(number) if callable(answer) else answer
        await asyncio.sleep(wait_s(number))
        if data is None:
            return
        writer.write(data)
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        listener.close()
        for writer in writers:
            writer.close()
