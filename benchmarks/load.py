"""Whether the machine was quiet: CPU time by processes that no benchmark started. Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

QUIET = 0.1
"""Share of all cores that others may take before a timing is called disturbed."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds of all cores so far: possible, used, and used by the processes we answer for."""

    total_s: float
    used_s: float
    ours_s: float


def read(*pids: int) -> Reading:
    """Ours are this process, its ended children, and those named by pid."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks = [int(number) for number in line.split()[1:9]]  # the rest is counted in the first two
    idle = ticks[3] + ticks[4]
    own = os.times()
    ours = sum(own[:4]) + sum(_cpu_s(pid) for pid in pids)
    return Reading(sum(ticks) / _TICK, (sum(ticks) - idle) / _TICK, ours)


def others(before: Reading, after: Reading) -> float:
    """The share of all cores that others took between two readings."""
    used = (after.used_s - before.used_s) - (after.ours_s - before.ours_s)
    return max(0.0, used / max(after.total_s - before.total_s, 1 / _TICK))


def wait(patience_s: float, sleep: Callable[[float], None] = time.sleep) -> float:
    """Waits for a quiet second, and returns the last second's share by others."""
    share, waited = 1.0, 0.0
    while share > QUIET and waited <= patience_s:
        before = read()
        sleep(1.0)
        waited += 1.0
        share = others(before, read())
    return share


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK
