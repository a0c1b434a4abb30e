"""A wall clock that jumps, for every Python process that finds this folder on PYTHONPATH.

Every `PART_S` seconds the clock is another up to `HOURS` hours ahead of or behind the true one, by
the seed in JUMPING_CLOCK: all processes with that seed see the same clock.
"""

import datetime
import os
import random
import time

PART_S, HOURS = 0.2, 12.0
_true, _seed = time.time, os.environ.get("JUMPING_CLOCK", "")


def _jumped() -> float:
    part = int(time.monotonic() / PART_S)
    return _true() + random.Random(f"{_seed}/{part}").uniform(-HOURS, HOURS) * 3600


class _Dates(type):
    """Dates made by C code are dates too."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _TRUE_DATES)


_TRUE_DATES = datetime.datetime


class _Jumping(_TRUE_DATES, metaclass=_Dates):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return _TRUE_DATES.fromtimestamp(_jumped(), tz)


if _seed:
    time.time = _jumped
    time.time_ns = lambda: int(_jumped() * 1e9)
    datetime.datetime = _Jumping  # type: ignore[misc]
