"""The tools of a server that speaks the Model Context Protocol, through the official SDK.

A server is a program that is started here, or an address. Nothing is started before its tools are
first needed. One connection per server serves all runs of this process, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import re
import shlex
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from threading import Lock, Thread
from typing import Any

from pydantic import TypeAdapter

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, reason
from orchestry.core.secrets import Redactor, without_key, without_keys
from orchestry.core.tools import Tool, ToolServer, ToolSpec

START_S = 60.0
"""Seconds within which a server must have named its tools."""
_TAIL = 64 * 1024
"""Bytes that are kept of what a program writes to stderr: its last ones."""
_SAID = 300
"""Characters of it in a message."""


class McpServer(ToolServer):
    """See `mcp`."""

    def __init__(self, server: str, effects: bool, timeout_s: float, env: Sequence[str]) -> None:
        self.server = server
        self._effects, self._timeout_s, self._env = effects, timeout_s, tuple(env)
        self._held: _Connection | None = None
        self._lock = Lock()

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools, as the server names them. Raises ConfigError if it can't be reached."""
        try:
            found = self._connected().run(_listed).result(START_S)
        except ImportError:
            raise ConfigError(f"tools of MCP servers need a package: {install('mcp')}") from None
        except TimeoutError:
            why, said = f"it did not name its tools within {START_S:g} s", self._drop(wait=False)
        except Exception as error:
            why, said = reason(_first(error)), self._drop()
        else:
            return tuple(self._tool(one) for one in found)
        said = f", and said '{self._shown(said)[:_SAID]}'" if said else ""
        raise ConfigError(
            f"the MCP server '{self._shown(self.server)}' can't be used ({self._shown(why)}){said}"
            ": check the command or address by hand"
        )

    def _shown(self, text: str) -> str:
        """The text without keys, of this process's environment or of others."""
        for name in self._env:
            text = without_key(text, os.environ.get(name, ""))
        return without_keys(Redactor(os.environ).text(text, len(text)))

    def _tool(self, found: Any) -> Tool:
        async def call(**given: Any) -> str:
            return await self._call(found.name, given)

        name = re.sub(r"[^a-zA-Z0-9_-]", "_", found.name)[:64]
        spec = ToolSpec(
            name=name, description=found.description or "", parameters=found.input_schema
        )
        arguments = TypeAdapter(dict[str, Any])  # the server checks them
        return Tool(call, spec, self._effects, self._timeout_s, arguments, None)

    async def _call(self, name: str, given: dict[str, Any]) -> str:
        """A call's result. After a broken connection the next call makes another."""
        try:
            connection = await asyncio.to_thread(self._connected)
            result = await asyncio.wrap_future(
                connection.run(lambda client: client.call_tool(name, given))
            )
        except Exception as error:
            if not _told_by_server(error):
                await asyncio.to_thread(self._drop)
            raise _first(error) from None
        text = "\n".join(_texts(result))
        return f"error: {text}" if result.is_error else text

    def _connected(self) -> _Connection:
        with self._lock:
            if self._held is None:
                self._held = _Connection(self.server, self._env)
            return self._held

    def _drop(self, wait: bool = True) -> str:
        """Ends the connection; the last line that a program wrote to stderr. A program that does
        not end by itself is killed after some seconds: without `wait`, meanwhile."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return ""
        ending = Thread(target=held.close)
        ending.start()
        if wait:
            ending.join()
        return held.said


def mcp(
    server: str, *, effects: bool = True, timeout_s: float = 60.0, env: Sequence[str] = ()
) -> McpServer:
    """All tools of an MCP server, as one entry of `AgentSpec(tools=[...])`.

    Args:
        server: a command, such as `uvx mcp-server-time`, or an http address.
        effects: whether its calls change anything; see `tool`.
        timeout_s: seconds that one call may take.
        env: names of environment variables that the program is given, besides PATH, HOME and their
            like. Their values are read when it starts, and stand in no file.
    """
    return McpServer(server, effects, timeout_s, env)


class _Connection:
    """A session with a server, in a thread with an event loop."""

    def __init__(self, server: str, env: Sequence[str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._client: Future[Any] = Future()
        self._holding: asyncio.Task[Any] | None = None
        self._stderr = _Stderr()
        self._thread = Thread(target=self._live, args=(server, env), daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def run(self, work: Any) -> Future[Any]:
        """The result of a coroutine function of the client, in the connection's thread."""
        return asyncio.run_coroutine_threadsafe(self._done(work), self._loop)

    @property
    def said(self) -> str:
        """The last line that the program wrote to stderr; '' if it wrote none."""
        lines = self._stderr.tail.decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Ends it, and the program."""
        atexit.unregister(self.close)
        with suppress(RuntimeError):  # its thread has ended, and closed the loop
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join(START_S)
        self._stderr.close()

    def _end(self) -> None:
        self._closing.set()
        if self._holding is not None and not self._client.done():  # it may never be
            self._holding.cancel()

    async def _done(self, work: Any) -> Any:
        return await work(await asyncio.wrap_future(self._client))

    def _live(self, server: str, env: Sequence[str]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._hold(server, env))

    async def _hold(self, server: str, env: Sequence[str]) -> None:
        """Keeps the client open until the end is asked for."""
        self._holding = asyncio.current_task()
        try:
            async with self._opened(server, env) as client:
                self._client.set_result(client)
                await self._closing.wait()
        except BaseException as error:
            if not self._client.done():
                self._client.set_exception(error)

    def _opened(self, server: str, env: Sequence[str]) -> Any:
        from mcp.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client

        # It logs each line that is no message, with its traceback; a flood would fill the terminal.
        logging.getLogger("mcp").addHandler(logging.NullHandler())
        if server.startswith(("http://", "https://")):
            return Client(server)
        command, *args = shlex.split(server)
        given = {name: os.environ[name] for name in env if name in os.environ}
        program = StdioServerParameters(command=command, args=args, env=given or None)
        return Client(stdio_client(program, errlog=self._stderr.file))


class _Stderr:
    """A file for a program's stderr, of which the last bytes are kept, in memory."""

    def __init__(self) -> None:
        self.tail = b""
        read, write = os.pipe()
        self.file = os.fdopen(write, "w")
        self._thread = Thread(target=self._keep, args=(read,), daemon=True)
        self._thread.start()

    def _keep(self, read: int) -> None:
        with os.fdopen(read, "rb", buffering=0) as file:
            while data := file.read(_TAIL):
                self.tail = (self.tail + data)[-_TAIL:]

    def close(self) -> None:
        """Reads what is left, unless a program that outlived the server still holds the file."""
        self.file.close()
        self._thread.join(1.0)


async def _listed(client: Any) -> list[Any]:
    """The tools of all pages."""
    page = await client.list_tools()
    found = [*page.tools]
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _texts(result: Any) -> list[str]:
    """A result's pieces as text, and its structured content, unless a piece says the same."""
    texts, structured = [_text(block) for block in result.content], result.structured_content
    if structured is None:
        return texts
    values = [_value(text) for text in texts]
    said = [*texts, *values, values]
    # the SDK wraps what is no object, and sends a list as one piece per item
    inner = structured["result"] if {*structured} == {"result"} else structured
    if structured in said or inner in said:
        return texts
    return [*texts, json.dumps(structured, ensure_ascii=False)]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(block: Any) -> str:
    """A piece of a result as text."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and (text := getattr(block.resource, "text", None)) is not None:
        return str(text)
    if block.type == "resource_link":
        return f"({block.name}: {block.uri})"
    return f"({block.type}, which is not shown)"


def _first(error: BaseException) -> BaseException:
    """What went wrong first, in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _told_by_server(error: Exception) -> bool:
    """Whether the server answered, so that the connection holds."""
    from mcp.shared.exceptions import MCPError

    return isinstance(error, MCPError) and "closed" not in str(error).lower()
