"""A server of two tools, over stdin and stdout or over HTTP: `mcp_server.py [PORT]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

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


if __name__ == "__main__":
    if "--broken" in sys.argv:
        sys.exit("it lacks a key")
    if "--started" in sys.argv:
        Path(sys.argv[-1]).touch()
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
