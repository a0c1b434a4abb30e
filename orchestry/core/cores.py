"""How many cores this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Whatever else runs on them: the number of a model's threads decides the last bits of what it
    computes, so the same run must find the same number.

    On cores that others use, too, fewer threads may be faster, since a model's threads wait for
    each other: there `learn.threads` says how many.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
