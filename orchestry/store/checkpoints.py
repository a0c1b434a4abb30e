"""Selects an update of a run: by number, the last, or the best on dev."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from orchestry.core.digests import file_digest
from orchestry.core.errors import ConfigError, StoreError
from orchestry.store.journal import Evaluated, Event, Learned
from orchestry.store.run import Run

Which = int | Literal["best"] | None
"""None: the last one. 0: the untrained team."""
OPTIMIZER = "optimizer.pt"
"""The part of a checkpoint that only a resume needs."""
DISTILLED = "distil.json"
"""In a folder of `orchestry distil`: what was read, and how it was learned."""


CHECKPOINT = "checkpoints/000001"
"""Its weights."""


def goes_on(distilled: Path) -> str:
    """The command that trains a distilled team on."""
    config, weights = (shlex.quote(str(distilled / name)) for name in ("config.yaml", CHECKPOINT))
    return f"orchestry run --config {config} --set learn.enabled=true --set learn.from={weights}"


def best_evaluation(events: Iterable[Event]) -> Evaluated | None:
    """The dev evaluation with the highest reward (the first, if tied); the untrained team's does
    not count."""
    found = [event for event in events if isinstance(event, Evaluated) and event.update]
    return max(found, key=lambda event: (event.reward, -event.update), default=None)


def dev_summary(events: Iterable[Evaluated]) -> dict[str, float]:
    """Mean rewards before the first update, at the last evaluation and at the best."""
    found = {event.update: event for event in events}
    top = best_evaluation(found.values())
    places = {"before": found.get(0), "last": found[max(found)] if top else None, "best": top}
    return {name: event.reward for name, event in places.items() if event}


def chosen_update(run: Run, which: Which) -> Learned | None:
    """The chosen update. None: the state before the first update.

    Raises ConfigError for an update that the run does not have.
    """
    taken = {event.update: event for event in run.events if isinstance(event, Learned)}
    if which is None:
        return taken[max(taken)] if taken else None
    if which == 0:
        return None
    if which == "best":
        return taken[_best(run)]
    if which not in taken:
        there = f"give 1 to {len(taken)}, or" if taken else "this run has no updates; give"
        raise ConfigError(
            f"{run.folder} has no update {which}: {there} 0 for the team before the first update"
        )
    return taken[which]


def checkpoint(run: Run, learned: Learned) -> Path:
    """The folder of an update's adapters. Raises ConfigError if the checkpoint is no longer kept,
    StoreError if its adapters were changed."""
    place = run.folder / str(learned.state["checkpoint"])
    taken = [event for event in run.events if isinstance(event, Learned)]
    kept = [one.update for one in taken if (run.folder / one.state["checkpoint"]).is_dir()]
    if not place.is_dir():
        raise ConfigError(
            f"the checkpoint of update {learned.update} is gone from {run.folder}, which keeps the "
            "last learn.keep, every learn.keep_every-th and the best: there are those of "
            f"{_listed(kept) or 'none any more'}"
        )
    others = _listed([update for update in kept if update != learned.update])
    fix = f", or name another update with --update ({others} are kept)" if others else ""
    check_files(run.folder, learned, f"restore it from a copy{fix}", but=OPTIMIZER)
    return place


def check_files(folder: Path, learned: Learned, fix: str, but: str = "") -> None:
    """Raises StoreError if a file of the checkpoint, except `but`, has changed."""
    place = folder / str(learned.state["checkpoint"])
    for name, digest in learned.state.get("files", {}).items():
        try:
            sound = name == but or file_digest(place / name) == digest
            why = f"is not what update {learned.update} wrote"
        except OSError as error:
            sound, why = False, f"can't be read ({error.strerror})"
        if not sound:
            raise StoreError(f"{place / name} {why}: {fix}")


def file_digests(place: Path) -> dict[str, str]:
    """Digests of all files of a checkpoint, for the journal."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {path.relative_to(place).as_posix(): file_digest(path) for path in files}


def _listed(updates: Iterable[int]) -> str:
    return ", ".join(map(str, updates))


def _best(run: Run) -> int:
    found = best_evaluation(run.events)
    if found is None:
        raise ConfigError(
            f"{run.folder} knows no best update: its team was not evaluated on dev while it "
            "learned (backend local, learn.evaluate_every); give the update's number"
        )
    return found.update
