"""Ctrl-C and a polite kill, for as long as something is under way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def heeding(handler: Callable[[], None]) -> Iterator[None]:
    """Calls `handler` at Ctrl-C and at a polite kill, where this thread may receive them."""
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
