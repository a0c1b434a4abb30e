"""A headless Chromium, driven over the pipe of its DevTools protocol: no driver, no port."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""Where one is found; None where none is."""
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--mute-audio", "--remote-debugging-pipe"),
)
CODES = {"Enter": 13, "Tab": 9, "Escape": 27}
"""Keys that do something by themselves, which the browser knows by number."""


class Tab:
    """One page of it. `events` keeps what the browser reported, oldest first."""

    def __init__(self, writes: int, reads: int) -> None:
        self._writes, self._reads = writes, reads
        self._numbers, self._buffer = count(1), b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def open(self, url: str) -> None:
        """Loads the page, with a record of its requests, messages and errors."""
        if self._session is None:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            found = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = found["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._take()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command; raises RuntimeError for one that the browser refuses."""
        number = next(self._numbers)
        command: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._writes, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._take()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def eval(self, code: str) -> Any:
        """The value of an expression in the page; raises RuntimeError for one that throws."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys, one after the other, as a keyboard gives them."""
        for key in keys:
            named: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": CODES.get(key, 0)}
            if len(key) == 1 or key == "Enter":
                named["text"] = "\r" if key == "Enter" else key
            self.call("Input.dispatchKeyEvent", type="keyDown", **named)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def close(self) -> None:
        """Ends the browser, all its processes."""
        self._session = None
        self.call("Browser.close")

    def _take(self, patience: float = 20.0) -> dict[str, Any]:
        """The next message; events are kept besides."""
        end = time.monotonic() + patience
        while b"\0" not in self._buffer:
            if not select.select([self._reads], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            more = os.read(self._reads, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self._buffer += more
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def browser(profile: Path, *flags: str) -> Iterator[Tab]:
    """A Chromium with a new profile in that folder, and one tab; ended with the block."""
    assert CHROMIUM, "no Chromium is found"
    theirs, writes = os.pipe()
    reads, out = os.pipe()
    # Chromium reads its commands from descriptor 3 and writes to 4.
    script = f'exec 3<&{theirs} 4>&{out}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags],
        pass_fds=(theirs, out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.close(out)
    tab = Tab(writes, reads)
    try:
        yield tab
    finally:
        tab.close()
        process.wait(20)
        os.close(writes)
        os.close(reads)
