"""RUN/evaluations/games.jsonl: a line per evaluation of a run of backend ppo in new games."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestry.core.files import salvage
from orchestry.core.types import Frozen
from orchestry.store.measurements import EVALUATIONS

FILE = "games.jsonl"


class Mean(Frozen):
    """A mean over games, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


class Team(Frozen):
    """What a team earned: its agents' mean, and each of them."""

    returns: Mean
    by_agent: tuple[Mean, ...]


class Evaluation(Frozen):
    """Teams that played the same new games."""

    at: float
    """Seconds since 1970."""
    options: Mapping[str, Any]
    """Of the task, as it was played."""
    changes: Mapping[str, Any]
    """Other settings than the run's, by dotted key, besides options."""
    games: int
    seed: int
    checkpoint: str
    """The digest of the one that played."""
    steps: int
    """Environment steps that it had learned from."""
    teams: Mapping[str, Team]


def keep(run: Path, found: Evaluation) -> None:
    """Appends a line, also while the run goes on; raises OSError if the disk refuses."""
    path = run / EVALUATIONS / FILE
    path.parent.mkdir(exist_ok=True)
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("ab") as file:  # by one write, so that several processes may add lines
        file.write(b"\n" * torn + found.model_dump_json().encode() + b"\n")


def kept(run: Path) -> tuple[list[Evaluation], str]:
    """The lines that can be read, oldest first, and which one is damaged; '' if none is."""
    return salvage(run / EVALUATIONS / FILE, _evaluation)


def _evaluation(line: bytes) -> Evaluation | None:
    try:
        return Evaluation.model_validate_json(line)
    except ValidationError:
        return None
