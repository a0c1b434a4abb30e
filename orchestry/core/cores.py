"""How many cores a model may take without standing in its own way."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOOK_S = 0.25


def idle_cores() -> int:
    """The cores that nobody uses right now, at least one. Takes a quarter of a second.

    A model's threads wait for each other, so one that shares its core with other work stops them
    all: on two busy cores, two threads are slower than one; on two idle ones, faster. The load
    average would do, but remembers for minutes what has ended, an earlier run of ours too.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) - round(busy_cores()))


def busy_cores() -> float:
    """How many cores were used in a short look; where the system has no such books, the load."""
    try:
        used, idle = _cpu_ticks()
        time.sleep(_LOOK_S)
        later, rest = _cpu_ticks()
    except OSError:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    share = (later - used) / max(1, later - used + rest - idle)
    return share * (os.cpu_count() or 1)


def _cpu_ticks() -> tuple[int, int]:
    """Ticks that all cores were used and idle, since the system began (Linux)."""
    numbers = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    ticks = [int(number) for number in numbers]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle
