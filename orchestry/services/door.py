"""A door: whether new attempts may begin. Calls in flight are never disturbed by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Sleep = Callable[[float], Awaitable[None]]


class Door:
    """Open until `shut`; then `check` raises what it was shut with, and so does every `sleep`.

    A door inside another one is shut together with it.
    """

    def __init__(self, sleep: Sleep, outer: Door | None = None) -> None:
        self._sleep = sleep
        self._outer = outer
        self._error: Exception | None = None
        self._is_shut = asyncio.Event()

    def shut(self, error: Exception) -> None:
        """Shuts the door; the first error stays."""
        self._error = self._error or error
        self._is_shut.set()

    def check(self) -> None:
        if self._outer is not None:
            self._outer.check()
        if self._error is not None:
            raise self._error

    async def sleep(self, seconds: float) -> None:
        """Waits, but no longer than the door is open."""
        sleeper = asyncio.ensure_future(self._sleep(seconds))
        tasks = [sleeper, *self._watch()]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        self.check()
        sleeper.result()

    def _watch(self) -> list[asyncio.Future[Any]]:
        outer = [] if self._outer is None else self._outer._watch()
        return [asyncio.create_task(self._is_shut.wait()), *outer]
