"""What the command line's tests share: a call in this process, and a server that misbehaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestry.cli import main

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
FAKE = ("--provider", "fake", "--task", "words", "--task-path", TASKS, "--episodes", "3")
"""A run that needs nothing: `orchestry run *FAKE`."""
Reply = tuple[int, bytes]


@dataclass(frozen=True)
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line on stderr, where an error stands."""
        return (self.err.strip().splitlines() or [""])[-1]

    def failed(self, code: int, *found: str) -> None:
        """Asserts the exit code, and one line that holds all of `found`, without a traceback."""
        assert (self.code, self.out) == (code, ""), self
        assert self.last.startswith("orchestry: "), self
        assert all(text in self.last for text in found), self
        assert "Traceback" not in self.err, self
        assert "never retrieved" not in self.err, self
        assert "Unclosed" not in self.err, self


class CommandLine:
    """Runs commands in this process; a fixture gives one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *args: object) -> Result:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(arg) for arg in args])
        out, err = self.capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Result(exit_.value.code, out, err)


@contextmanager
def served(
    answer: Callable[[int, dict[str, Any]], Reply], heard: list[Mapping[str, str]] | None = None
) -> Iterator[str]:
    """A server on loopback, in threads: (number, body) -> (status, bytes); its address. The headers
    of the requests go to `heard`."""
    count = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if heard is not None:
                heard.append({name.lower(): text for name, text in self.headers.items()})
            status, data = answer(next(count), body)
            self.send_response(status)
            kind = "text/event-stream" if data.startswith(b"event:") else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Nothing: stderr belongs to the command under test."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def message(text: str) -> bytes:
    """A good answer of the Messages API."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    content = [{"type": "text", "text": text}]
    return json.dumps({"content": content, "usage": usage, "stop_reason": "end_turn"}).encode()


def stream(text: str) -> bytes:
    """The same answer as the events of a stream."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    start = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "usage": usage}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()


def chat(text: str) -> bytes:
    """A good answer of chat completions."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": text}}
    return json.dumps({"choices": [choice], "usage": usage}).encode()
