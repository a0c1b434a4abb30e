"""Running several things at once: all are awaited, and a stop ends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from orchestry.core.errors import BudgetExceeded, Interrupted

_T = TypeVar("_T")
Sleep = Callable[[float], Awaitable[None]]


async def together(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """All results in order. If some fail, the others finish first, because their calls are paid for
    and their answers belong in the journal. Then the gravest error is raised.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise gravest(errors)
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


class Outstanding:
    """Work that is started and awaited later, by the end of `async with` at the latest.

    If the block fails, the work finishes first, because its calls are paid for. If it is cancelled,
    so is the work.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Starts it at once."""
        self._tasks.append(asyncio.create_task(work))
        return self._tasks[-1]

    async def __aenter__(self) -> Outstanding:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def gravest(errors: Sequence[BaseException]) -> BaseException:
    """The error that best explains why a batch failed."""
    for kind in (Interrupted, BudgetExceeded):
        for error in errors:
            if isinstance(error, kind):
                return error
    return errors[0]


@contextmanager
def heeding(handler: Callable[[], None]) -> Iterator[None]:
    """Calls `handler` at Ctrl-C and SIGTERM, if this thread may receive signals."""
    loop, held = asyncio.get_running_loop(), list[signal.Signals]()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, handler)
            held.append(number)
        except (ValueError, RuntimeError, NotImplementedError):
            break  # not the main thread (a notebook), or a system without them
    try:
        yield
    finally:
        for number in held:
            loop.remove_signal_handler(number)


class Door:
    """Open until `shut`. Afterwards `check` and every `sleep` raise the error it was shut with."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep = sleep
        self._error: Exception | None = None
        self._is_shut = asyncio.Event()

    def shut(self, error: Exception) -> None:
        """Shuts the door; only the first error is kept."""
        self._error = self._error or error
        self._is_shut.set()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    async def sleep(self, seconds: float) -> None:
        """Waits; returns early if the door is shut."""
        await self.during(self._sleep(seconds))
        self.check()

    async def during(self, work: Awaitable[_T]) -> _T:
        """The result of the work. If the door is shut meanwhile, the work is cancelled and `check`
        raises."""
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
