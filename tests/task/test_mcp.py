"""Tools of real MCP servers: a program that is started, and one over HTTP."""

from __future__ import annotations

import importlib
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestry import AgentSpec, tools
from orchestry.core.errors import ConfigError
from orchestry.task import mcp
from orchestry.task.mcp import McpServer

SERVER = Path(__file__).with_name("mcp_server.py")
COMMAND = f"{sys.executable} {SERVER}"
HERE: Any = None

pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[McpServer]:
    monkeypatch.setenv("MCP_SECRET", "sesame")
    monkeypatch.setenv("OTHER", "hidden")
    made = tools.mcp(COMMAND, env=["MCP_SECRET", "MISSING"])
    yield made
    made._drop()


async def use(server: McpServer, name: str, arguments: str = "{}") -> str:
    found = {one.spec.name: one for one in server.tools}
    return await found[name].use(arguments, HERE)


def test_nothing_is_started_before_its_tools_are_needed(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    made = tools.mcp(f"{COMMAND} --started {mark}")
    spec = AgentSpec(role="clerk", tools=(made, tools.python))
    assert spec.tools
    assert not mark.exists()
    try:
        names = [one.spec.name for one in spec.every_tool]
    finally:
        made._drop()
    assert mark.exists()
    assert names == ["add", "who_am_i", "die", "read", "rows", "python"]


async def test_its_tools_are_called(server: McpServer) -> None:
    add = server.tools[0].spec
    assert add.description == "Adds two numbers."
    assert add.parameters["properties"]["first"]["type"] == "integer"
    assert await use(server, "add", '{"first": 1}') == "3"
    wrong = await use(server, "add", '{"first": -1}')
    assert wrong.startswith("error: Error executing tool add")  # some versions also say why
    assert (await use(server, "add", '{"first": "x"}')).startswith("error: ")
    assert (await use(server, "add", "[]")).startswith("error: wrong arguments of add: ")


async def test_one_process_serves_all_and_sees_only_what_it_is_given(server: McpServer) -> None:
    first, second = await use(server, "who_am_i"), await use(server, "who_am_i")
    assert first == second
    assert first.split()[1:] == ["sesame", "none"]


async def test_a_server_that_dies_is_started_again(server: McpServer) -> None:
    first = (await use(server, "who_am_i")).split()[0]
    assert (await use(server, "die")).startswith("error: ")
    assert (await use(server, "who_am_i")).split()[0] != first


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"{COMMAND} --broken", "and said 'it lacks a key': check the command or address by hand"),
        ("no-such-program", "the MCP server 'no-such-program' can't be used ("),
        ("http://127.0.0.1:1/mcp", "the MCP server 'http://127.0.0.1:1/mcp' can't be used ("),
    ],
)
def test_a_server_that_cannot_be_used_is_named(command: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _ = tools.mcp(command).tools
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("resource", "the word is amber"),
        ("structured", '{"lines": 42}'),
        ("both", '2 rows\n{"rows": [1, 2]}'),
        ("link", "(log: file:///b.txt)"),
    ],
)
async def test_what_a_result_holds_reaches_the_model(
    server: McpServer, how: str, said: str
) -> None:
    assert await use(server, "read", f'{{"how": "{how}"}}') == said


async def test_what_is_sent_twice_is_shown_once(server: McpServer) -> None:
    assert await use(server, "rows", '{"count": 3}') == "0\n1\n2"
    assert await use(server, "rows", '{"count": 0}') in ("", "[]")


def test_a_key_in_what_a_server_says_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_SECRET", "sesame-opens")
    with pytest.raises(ConfigError) as raised:
        _ = tools.mcp(f"{COMMAND} --leaky --token sk-proj-abcdefgh1234", env=["MCP_SECRET"]).tools
    said = str(raised.value)
    assert "and said 'wrong key ***, or ***'" in said
    assert "sesame" not in said
    assert "sk-" not in said


FLOOD = """import sys
while True:
    sys.stdout.write(sys.argv[-1].join(["junk"] * 10_000))
    sys.stderr.write("noise" * 10_000 + "\\n")
"""
"""A program of no imports, so that its noise has come before the time is up on any machine."""


@pytest.mark.parametrize("between", ["", "\n"])
def test_a_flood_is_refused_in_time(
    between: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    importlib.import_module("mcp.client")  # which takes seconds on a busy machine
    monkeypatch.setattr(mcp, "START_S", 4.0)
    made, began = (
        tools.mcp(shlex.join([sys.executable, "-c", FLOOD, between])),
        time.time(),
    )
    with pytest.raises(ConfigError, match=r"did not name its tools within 4 s.*said 'noise"):
        _ = made.tools
    assert time.time() - began < 20.0  # the client is not waited for
    assert made._held is None
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def address() -> Iterator[str]:
    """A server over HTTP, once it accepts connections."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()
    with subprocess.Popen([sys.executable, str(SERVER), str(place[1])]) as process:
        for _ in range(300):
            with socket.socket() as tried:
                if tried.connect_ex(place) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{place[1]}/mcp"
        process.terminate()


async def test_a_server_over_http_is_called(address: str) -> None:
    made = tools.mcp(address)
    try:
        assert await use(made, "add", '{"first": 5}') == "7"
    finally:
        made._drop()
