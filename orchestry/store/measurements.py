"""A run's evaluations and baselines: their folders and the meaning of the folders' names.

`RUN/evaluations/test--update-4--samples-10` is its team on test, `test--update-4--on-arxiv` that
team on the task arxiv's test, `RUN/baselines/fixed--test` a baseline beside it. Only this file
parses these names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from orchestry.core.digests import text_digest
from orchestry.core.errors import StoreError, reason
from orchestry.core.files import is_run
from orchestry.core.resolve import leaves
from orchestry.core.types import SPLITS, Frozen

EVALUATIONS, BASELINES = "evaluations", "baselines"
ASKS = "asks"
"""The folder of a run in which the asks of its team lie."""
SHARED = "shared"
"""Who plays every role where one adapter is all agents'."""
TRANSFER = "transfer.json"
"""In the folder of an evaluation on another task: how it was played there."""
FORMS = "[BASELINE--]SPLIT[--update-N][--samples-K][--as-DIGEST][--on-TASK]"
"""The form of a folder's name, for messages."""
_NAME = re.compile(
    rf"(?:(?P<baseline>\w+)--)?(?P<split>{'|'.join(SPLITS)})"
    r"(?:--update-(?P<update>\d+))?(?:--samples-(?P<samples>\d+))?"
    r"(?:--as-(?P<how>[0-9a-f]{8}))?(?:--on-(?P<task>.+))?"
)


class Transfer(Frozen):
    """How a team plays another task than the one it learned."""

    task: str
    roles: Mapping[str, str | None]
    """By role of that task, the agent whose learned part it has; None: it plays untrained."""
    changes: Mapping[str, Any] = Field(default_factory=dict)
    """Settings that are that task's own, nested like the config."""

    @property
    def how(self) -> str | None:
        """A digest of what the names of tasks and agents don't tell; None if there is nothing."""
        if not (self.renamed or self.changes):
            return None
        return text_digest(json.dumps([self.renamed, self.changes], sort_keys=True))[:8]

    @property
    def renamed(self) -> list[tuple[str, str | None]]:
        """Roles that an agent of another name plays, and that agent."""
        own = (None, SHARED)
        return [(role, a) for role, a in sorted(self.roles.items()) if a not in (*own, role)]

    @property
    def words(self) -> str:
        """Who plays what, and the settings, as text."""
        said = [f"{agent} plays {role}" for role, agent in self.renamed]
        return "; ".join([*said, *(f"{key}={value}" for key, value in leaves(self.changes))])


def transfer_of(folder: Path) -> Transfer | None:
    """How an evaluation on another task was played; None for one on the run's own."""
    file = folder / TRANSFER
    try:
        return Transfer.model_validate_json(file.read_bytes()) if file.is_file() else None
    except (OSError, ValidationError) as error:
        raise StoreError(
            f"{file} can't be read ({reason(error)}): restore it from a copy"
        ) from None


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
    task: str | None = None
    """Another task than the run's."""
    how: str | None = None
    """On another task: see `Transfer.how`."""

    @property
    def name(self) -> str:
        """The folder's name."""
        parts = [self.baseline, self.split]
        parts += [f"update-{self.update}" if self.update is not None else None]
        parts += [f"samples-{self.samples}" if self.samples is not None else None]
        parts += [f"as-{self.how}" if self.how else None, f"on-{self.task}" if self.task else None]
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
        split, baseline, how, task = match.group("split", "baseline", "how", "task")
        return cls(split=split, baseline=baseline, how=how, task=task, **numbers)


def evaluation_folders(run: Path) -> Iterator[tuple[Path, Measurement]]:
    """The folders of a run's evaluations, finished or not."""
    for place in sorted((run / EVALUATIONS).glob("*")):
        if found := Measurement.parse(place.name):
            yield place, found


def last_evaluation(run: Path, split: str, samples: int | None) -> Path | None:
    """The folder of a run's evaluation on its own task: of its last update; None if there is
    none."""
    found = [
        (stage.update or 0, folder)
        for folder, stage in evaluation_folders(run)
        if stage == Measurement(split=split, update=stage.update, samples=samples)
        and is_run(folder)
    ]
    return max(found)[1] if found else None


def host_of(folder: Path) -> Path | None:
    """The run that contains the folder of a measurement or an ask; None if there is none."""
    host = folder.parent.parent
    inside = folder.parent.name in (EVALUATIONS, BASELINES, ASKS)
    return host if inside and is_run(host) else None
