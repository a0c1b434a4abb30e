"""A door: whether new attempts may begin. Of the calls in flight, it ends those that are free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


class Door:
    """Open until `shut`; then `check` raises what it was shut with, and so does every `sleep`."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._error: Exception | None = None
        self._is_shut = asyncio.Event()

    def shut(self, error: Exception) -> None:
        """Shuts the door; the first error stays."""
        self._error = self._error or error
        self._is_shut.set()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    async def sleep(self, seconds: float) -> None:
        """Waits, but no longer than the door is open."""
        await self.during(self._sleep(seconds))
        self.check()

    async def during(self, work: Awaitable[T]) -> T:
        """What the work gives; once the door is shut it is cancelled, and `check` raises."""
        task, shut = asyncio.ensure_future(work), asyncio.ensure_future(self._is_shut.wait())
        try:
            await asyncio.wait([task, shut], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                self.check()
            return task.result()
        finally:
            task.cancel()
            shut.cancel()
