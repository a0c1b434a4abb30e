"""What was measured around a run: where it lies, and what the names of its folders say.

`RUN/evaluations/test--update-4--samples-10` is its team on test, `RUN/baselines/fixed--test` a
baseline beside it. Other rooms ask this file: none takes a name apart itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from orchestry.core.types import SPLITS

EVALUATIONS, BASELINES = "evaluations", "baselines"
FORMS = "[BASELINE--]SPLIT[--update-N][--samples-K]"
"""What a folder may be called, as messages show it."""
_NAME = re.compile(
    rf"(?:(?P<baseline>.+)--)?(?P<split>{'|'.join(SPLITS)})"
    r"(?:--update-(?P<update>\d+))?(?:--samples-(?P<samples>\d+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Who played which problems, and how often."""

    split: str
    baseline: str | None = None
    """None: the run's team."""
    update: int | None = None
    """The update that left the team so, 0: as the run began; None: it learned nothing."""
    samples: int | None = None
    """Independent trajectories of each problem; None: as the run's own search."""

    @property
    def name(self) -> str:
        """The folder's name."""
        parts = [self.baseline, self.split]
        parts += [f"update-{self.update}" if self.update is not None else None]
        parts += [f"samples-{self.samples}" if self.samples is not None else None]
        return "--".join(part for part in parts if part is not None)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """What a folder's name says; None for one that says something else.

        >>> Measurement.parse("fixed--test--samples-10").samples
        10
        """
        if (match := _NAME.fullmatch(name)) is None:
            return None
        numbers = {key: int(match[key]) for key in ("update", "samples") if match[key]}
        return cls(split=match["split"], baseline=match["baseline"], **numbers)


def evaluations(run: Path) -> Iterator[tuple[Path, Measurement]]:
    """The folders of a run's evaluations, finished or not."""
    for place in sorted((run / EVALUATIONS).glob("*")):
        if found := Measurement.parse(place.name):
            yield place, found


def host_of(folder: Path) -> Path | None:
    """The run that a measurement's folder lies in; None for one that lies elsewhere."""
    host = folder.parent.parent
    inside = folder.parent.name in (EVALUATIONS, BASELINES)
    return host if inside and (host / "journal.jsonl").is_file() else None
