"""A server of two tools, over stdin and stdout or over HTTP: `mcp_server.py [PORT]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import (
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

server = MCPServer("errands")


@server.tool()
def add(first: int, second: int = 2) -> int:
    """Adds two numbers."""
    if first < 0:
        raise ValueError("first is negative")
    return first + second


@server.tool(name="who.am.i")
def whoami() -> str:
    """The process, and a secret."""
    return f"{os.getpid()} {os.environ.get('MCP_SECRET', 'none')} {os.environ.get('OTHER', 'none')}"


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(3)


@server.tool()
def read(how: str) -> CallToolResult:
    """Answers in one of the protocol's ways."""
    inside = TextResourceContents(uri="file:///a.txt", text="the word is amber")
    ways: dict[str, CallToolResult] = {
        "resource": CallToolResult(content=[EmbeddedResource(type="resource", resource=inside)]),
        "structured": CallToolResult(content=[], structured_content={"lines": 42}),
        "both": CallToolResult(
            content=[TextContent(type="text", text="2 rows")], structured_content={"rows": [1, 2]}
        ),
        "link": CallToolResult(
            content=[ResourceLink(type="resource_link", name="log", uri="file:///b.txt")]
        ),
    }
    return ways[how]


@server.tool()
def rows(count: int) -> list[int]:
    """A list, which the SDK sends as pieces and as structured content."""
    return [*range(count)]


if __name__ == "__main__":
    if "--broken" in sys.argv:
        sys.exit("it lacks a key")
    if "--leaky" in sys.argv:
        sys.exit(f"wrong key {os.environ['MCP_SECRET']}, or sk-proj-abcdefghijklmnop")
    if "--started" in sys.argv:
        Path(sys.argv[-1]).touch()
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
