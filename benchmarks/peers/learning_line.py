"""The connection of a peer of benchmarks.quality.learning to the process that plays the team.

A peer runs in its own environment and needs nothing of Orchestry. It asks by lines of JSON on
stdout and is answered by lines on stdin, so that one gateway answers, counts and keeps all calls.
Several threads may ask at once: an ask and its reply have the same `number`.

The first line in is the order: `seed`, `calls` (the most that the model may be asked), `prompts` by
role, `train` and `dev` (each problem's text by its id). Then the peer may ask

- `play`: `prompts` by role and `problems`; the reply's `plays` has for each problem its `reward`,
  `feedback` and `turns`, or None once the calls are spent;
- `reflect`: `messages`; the reply's `text` is '' once the calls are spent.

The last line out is `done`: `kept`, every candidate that was evaluated, with its `prompts` and mean
reward on `dev`, what it started from first, and `best`, the place of the chosen one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TextIO


class Line:
    """The connection; `order` is the first line, `calls` what the model was asked so far."""

    def __init__(self, replies: TextIO, asks: TextIO) -> None:
        self._replies, self._asks = replies, asks
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._number = 0
        self.order: Any = json.loads(replies.readline())
        self.calls = 0
        self._over = False
        threading.Thread(target=self._read, daemon=True).start()

    def play(self, prompts: Mapping[str, str], problems: Sequence[str]) -> list[Any]:
        """One play of each problem by a team with these system prompts."""
        return list(self._ask(ask="play", prompts=prompts, problems=problems)["plays"])

    def reflect(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's answer to messages of any text."""
        return str(self._ask(ask="reflect", messages=messages)["text"])

    def done(self, kept: Sequence[Mapping[str, Any]], best: int) -> None:
        """The last word: see the module."""
        self._over = True
        self._send({"ask": "done", "kept": kept, "best": best})

    def _ask(self, **message: Any) -> Any:
        with self._lock:
            self._number += 1
            number, reply = self._number, Future[Any]()
            self._waiting[number] = reply
            self._send({"number": number, **message})
        said = reply.result()
        self.calls = max(self.calls, said["calls"])
        return said

    def _send(self, message: Mapping[str, Any]) -> None:
        self._asks.write(json.dumps(message) + "\n")
        self._asks.flush()

    def _read(self) -> None:
        for line in self._replies:
            reply = json.loads(line)
            self._waiting.pop(reply["number"]).set_result(reply)
        if not self._over:
            print("the process that plays has gone away", file=sys.stderr, flush=True)
            os._exit(1)  # whatever waits for a reply would wait for ever


def serve(optimise: Callable[[Line], None]) -> None:
    """Keeps the real stdout for the connection: whatever prints, prints to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as asks:
        os.dup2(2, 1)
        optimise(Line(sys.stdin, asks))
