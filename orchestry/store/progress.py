"""progress.jsonl: a row of figures per batch, of a run of backend ppo."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

from orchestry.core.errors import StoreError
from orchestry.core.files import salvage

PROGRESS = "progress.jsonl"
MEAN, PACE = "train/avg_reward_100ep", "train/steps_per_sec"
"""The mean return of the last 100 games or episodes, and environment steps per second."""
GPU = "gpu"
"""The section of the figures of `backends.gpu`."""
RECENT = 100
"""Games or episodes of that mean."""
Row = dict[str, float]
"""Figures by name; each row has `steps` (so far) and `at` (seconds)."""


def progress(folder: Path) -> list[Row]:
    """The rows of a run, oldest first; none where it has no such file. A last line that a kill cut
    off is left out. Raises StoreError for another line that is no row."""
    rows, damaged = readable(folder)
    if damaged:
        raise StoreError(damaged)
    return rows


def readable(folder: Path) -> tuple[list[Row], str]:
    """The rows that can be read, and which line is damaged; '' if none is."""
    return salvage(folder / PROGRESS, _row)


def _row(line: bytes) -> Row | None:
    """None for a line that is no row."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not {"steps", "at"} <= found.keys():
        return None
    numbers = all(isinstance(value, int | float) and isfinite(value) for value in found.values())
    return found if numbers else None
