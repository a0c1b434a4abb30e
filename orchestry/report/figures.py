"""All figures of a report, drawn and saved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestry.report import bars, lines, stacks
from orchestry.report.arms import Arm, by_task
from orchestry.report.picture import Picture
from orchestry.report.style import look, save

WAYS: Mapping[str, Callable[[str, Sequence[Arm]], Picture | None]] = {
    "rewards": lines.draw,
    "comparison": bars.draw,
    "kinds": stacks.draw_kinds,
    "tags": stacks.draw_tags,
}
"""By name, what draws it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure on disk."""

    way: str
    """One of WAYS."""
    task: str
    caption: str
    paths: tuple[Path, ...]
    """The PNG, and the same as SVG."""


def draw(found: Sequence[Arm], folder: Path) -> list[Drawn]:
    """Draws each task's figures for which there is something to draw, into `folder`."""
    drawn = []
    folder.mkdir(parents=True, exist_ok=True)
    with look():
        for task, of_task in by_task(found).items():
            for way, picture_of in WAYS.items():
                if picture := picture_of(task, of_task):
                    name = f"{way}-{re.sub(r'[^A-Za-z0-9_.-]', '_', task)}"
                    paths = tuple(save(picture.figure, folder, name))
                    drawn.append(Drawn(way, task, picture.caption, paths))
    return drawn
