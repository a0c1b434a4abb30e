"""A door: whether new attempts may begin. Calls in flight are never disturbed by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

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
        sleeper = asyncio.ensure_future(self._sleep(seconds))
        shut = asyncio.ensure_future(self._is_shut.wait())
        try:
            await asyncio.wait([sleeper, shut], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            shut.cancel()
        self.check()
        sleeper.result()
