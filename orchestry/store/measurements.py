"""A run's evaluations and baselines: their folders and the meaning of the folders' names.

`RUN/evaluations/test--update-4--samples-10` is its team on test, `RUN/baselines/fixed--test` a
baseline beside it. Only this file parses these names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from orchestry.core.files import is_run
from orchestry.core.types import SPLITS

EVALUATIONS, BASELINES = "evaluations", "baselines"
ASKS = "asks"
"""The folder of a run in which the asks of its team lie."""
FORMS = "[BASELINE--]SPLIT[--update-N][--samples-K]"
"""The form of a folder's name, for messages."""
_NAME = re.compile(
    rf"(?:(?P<baseline>.+)--)?(?P<split>{'|'.join(SPLITS)})"
    r"(?:--update-(?P<update>\d+))?(?:--samples-(?P<samples>\d+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Which team played which problems, and how often."""

    split: str
    baseline: str | None = None
    """None: the run's team."""
    update: int | None = None
    """The team's update; 0: untrained; None: the run learned nothing."""
    samples: int | None = None
    """Independent trajectories per problem; None: the run's own search."""

    @property
    def name(self) -> str:
        """The folder's name."""
        parts = [self.baseline, self.split]
        parts += [f"update-{self.update}" if self.update is not None else None]
        parts += [f"samples-{self.samples}" if self.samples is not None else None]
        return "--".join(part for part in parts if part is not None)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parses a folder's name; None if it has another form.

        >>> Measurement.parse("fixed--test--samples-10").samples
        10
        """
        if (match := _NAME.fullmatch(name)) is None:
            return None
        numbers = {key: int(match[key]) for key in ("update", "samples") if match[key]}
        return cls(split=match["split"], baseline=match["baseline"], **numbers)


def evaluation_folders(run: Path) -> Iterator[tuple[Path, Measurement]]:
    """The folders of a run's evaluations, finished or not."""
    for place in sorted((run / EVALUATIONS).glob("*")):
        if found := Measurement.parse(place.name):
            yield place, found


def last_evaluation(run: Path, split: str, samples: int | None) -> Path | None:
    """The folder of a run's evaluation: of its last update; None if there is none."""
    found = [
        (stage.update or 0, folder)
        for folder, stage in evaluation_folders(run)
        if (stage.split, stage.samples) == (split, samples) and is_run(folder)
    ]
    return max(found)[1] if found else None


def host_of(folder: Path) -> Path | None:
    """The run that contains the folder of a measurement or an ask; None if there is none."""
    host = folder.parent.parent
    inside = folder.parent.name in (EVALUATIONS, BASELINES, ASKS)
    return host if inside and is_run(host) else None
