"""How the reports' tests make runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from orchestry.core.config import RunConfig, validate
from orchestry.core.resolve import merge

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"


def config(**changes: Any) -> RunConfig:
    """Three episodes of `words`, answered by seeded filler text."""
    plain: dict[str, Any] = {
        "task": "words",
        "task_path": [str(TASKS)],
        "episodes": 3,
        "provider": {"name": "fake"},
        "cache": {"enabled": False},
    }
    return validate(merge(plain, changes))


def copied(run: Path, place: Path) -> Path:
    """A run's folder, copied to be changed."""
    shutil.copytree(run, place)
    return place
