"""Steps per second, over rounds. Imports nothing, so that peers' environments can."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

SECONDS, ROUNDS = 1.0, 5


def rate(
    play: Callable[[], int], clock: Callable[[], float] = time.process_time
) -> tuple[float, float, float]:
    """Environment steps per second of the clock, which is CPU time: median, least and most of the
    rounds. `play` says how many it took."""
    found = []
    for _ in range(ROUNDS):
        steps, start = 0, clock()
        while (spent := clock() - start) < SECONDS:
            steps += play()
        found.append(steps / spent)
    return median(found), min(found), max(found)
