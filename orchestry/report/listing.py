"""Runs in folders, one row each: what they are, how far they came, what they earned and cost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from orchestry.core.errors import ConfigError, OrchestryError, unknown
from orchestry.core.files import is_judge_check, is_run
from orchestry.report.runs import Salvaged
from orchestry.store.checkpoints import DISTILLED
from orchestry.store.progress import MEAN
from orchestry.store.recipes import recipe_in
from orchestry.store.records import Summary
from orchestry.store.run import is_written

_TAIL = 1 << 16
"""Bytes from which the last events of a journal are read; an ending is shorter."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    run: str
    """Its folder."""
    state: str
    """`running`; why it ended (`done`, `budget`, `away`, `interrupted`, `failed`); `cut off`: its
    process was killed or crashed; `damaged`."""
    task: str = ""
    backend: str = ""
    model: str = ""
    begun: str = ""
    """When its first process began, UTC, ISO 8601."""
    episodes: int = 0
    """Finished, failed ones included."""
    asked: int = 0
    """Episodes to play; of backend ppo, environment steps."""
    steps: int | None = None
    """Of backend ppo: environment steps so far."""
    reward: float | None = None
    """The mean over all trajectories, in [0, 1]. Of backend ppo the mean return of the last 100
    games."""
    best_of_k: float | None = None
    """The mean over episodes of the best trajectory's reward."""
    best: float | None = None
    """The highest reward of one trajectory."""
    usd: float = 0.0
    seconds: float = 0.0
    """Wall-clock seconds of its last process."""
    error: str = ""
    """Why nothing else is known."""

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


KEYS = [field.name for field in fields(Row)]


def rows_in(places: Sequence[Path]) -> list[Row]:
    """The runs in these folders: each itself, or what it holds. Raises ConfigError for a folder
    that does not exist."""
    return [_row(folder) for place in places for folder in _folders(place)]


def chosen(rows: Sequence[Row], wanted: Sequence[str], by: str) -> list[Row]:
    """The rows that fit every `key=pattern` (`*` stands for any text), the highest `by` first, and
    those without it at the end. Raises ConfigError for an unknown key."""
    pairs = [_pair(text) for text in wanted]
    if by not in KEYS:
        raise ConfigError(unknown("key to sort by", by, KEYS))
    found = [row for row in rows if all(_fits(row, *pair) for pair in pairs)]
    with_it = [row for row in found if getattr(row, by) not in (None, "")]
    without = [row for row in found if getattr(row, by) in (None, "")]
    text = by in ("run", "task", "backend", "model", "state")
    return [*sorted(with_it, key=lambda row: getattr(row, by), reverse=not text), *without]


def _pair(text: str) -> tuple[str, str]:
    key, sep, pattern = text.partition("=")
    if not sep:
        raise ConfigError(f"'{text}' is no filter: give key=pattern, such as task=code_*")
    if key not in KEYS:
        raise ConfigError(unknown("key to filter by", key, KEYS))
    return key, pattern


def _fits(row: Row, key: str, pattern: str) -> bool:
    value = "" if getattr(row, key) is None else str(getattr(row, key))
    name = Path(value).name if key == "run" else value
    return fnmatchcase(value, pattern) or fnmatchcase(name, pattern)


def _folders(place: Path) -> Iterator[Path]:
    """A run, the stages of a recipe, or the runs and recipes in a folder, by name."""
    if not place.is_dir():
        raise ConfigError(f"{place} is no folder: give a folder of runs, or a run's directory")
    if is_judge_check(place):
        return
    if is_run(place):
        yield place
    elif stages := recipe_in(place):
        yield from (stage.folder for stage in stages if stage.begun)
    else:
        for inner in sorted(place.iterdir()):
            if is_run(inner) or (inner.is_dir() and recipe_in(inner)):
                yield from _folders(inner)


def _row(folder: Path) -> Row:
    try:
        return _read(folder)
    except (OrchestryError, OSError) as error:
        return Row(run=str(folder), state="damaged", error=str(error))


def _read(folder: Path) -> Row:
    run, end = Salvaged(folder), _end(folder / "journal.jsonl")
    if (folder / DISTILLED).is_file():
        end = "done"
    summary = run.written if end else None
    summary = summary or run.folded
    found = Row(
        run=str(folder),
        state=end or ("running" if is_written(folder) else "cut off"),
        task=summary.task,
        backend=summary.backend,
        model=f"{summary.provider}/{summary.model}".strip("/"),
        begun=_begun(folder / "journal.jsonl"),
        episodes=summary.episodes,
        asked=summary.episodes_asked,
        reward=summary.mean_reward,
        best_of_k=summary.best_of_k,
        best=summary.best_reward,
        usd=summary.cost_usd,
        seconds=summary.seconds,
    )
    return _neural(found, summary, run) if summary.backend == "ppo" else found


def _neural(row: Row, summary: Summary, run: Salvaged) -> Row:
    """A run of backend ppo has steps and returns in place of episodes and rewards."""
    figures = summary.learning or next(reversed(run.batches), {})
    return Row(
        **{
            **row.plain(),
            "model": "",
            "asked": int(run.config["ppo"]["steps"]),
            "steps": int(figures.get("steps", 0)),
            "reward": figures.get(MEAN),
            "best_of_k": None,
            "best": None,
        }
    )


def _end(journal: Path) -> str | None:
    """Why the last process ended; None: it did not say. A person may have rated since."""
    with journal.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().split(b"\n")[:-1]
    for line in reversed(lines):
        event = _event(line)
        if event.get("kind") != "rated":
            return str(event.get("reason")) if event.get("kind") == "stopped" else None
    return None


def _begun(journal: Path) -> str:
    with journal.open("rb") as file:
        at = _event(file.readline()).get("at")
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") if at else ""
    except (TypeError, ValueError, OverflowError):  # a damaged line
        return ""


def _event(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
