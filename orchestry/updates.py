"""Which update of a run is meant: by its number, the last, or the one that earned most on dev."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from orchestry.errors import ConfigError
from orchestry.journal import Evaluated, Event, Learned
from orchestry.store import Run

Which = int | Literal["best"] | None
"""None: the last one. 0: the team as the run began."""


def best(events: Iterable[Event]) -> Evaluated | None:
    """The evaluation on dev with the highest reward, the first of them in a tie; what the run
    began with is none."""
    found = [event for event in events if isinstance(event, Evaluated) and event.update]
    return max(found, key=lambda event: (event.reward, -event.update), default=None)


def chosen(run: Run, which: Which) -> Learned | None:
    """The update that is meant; None where it is none but the run's beginning.

    Raises ConfigError for one that the run has not taken.
    """
    taken = {event.update: event for event in run.events if isinstance(event, Learned)}
    if which is None:
        return taken[max(taken)] if taken else None
    if which == 0:
        return None
    if which == "best":
        return taken[_best(run)]
    if which not in taken:
        there = f"1 to {len(taken)} are its updates" if taken else "it has taken none"
        raise ConfigError(
            f"{run.folder} has no update {which}: {there}, and 0 is the team as it began"
        )
    return taken[which]


def checkpoint(run: Run, learned: Learned) -> Path:
    """The folder of an update's adapters; raises ConfigError for one that is kept no more."""
    place = run.folder / str(learned.state["checkpoint"])
    if place.is_dir():
        return place
    taken = [event for event in run.events if isinstance(event, Learned)]
    there = [str(one.update) for one in taken if (run.folder / one.state["checkpoint"]).is_dir()]
    raise ConfigError(
        f"the checkpoint of update {learned.update} is gone from {run.folder}, which keeps the "
        f"last learn.keep and the best: there are those of {', '.join(there) or 'none any more'}"
    )


def _best(run: Run) -> int:
    found = best(run.events)
    if found is None:
        raise ConfigError(
            f"{run.folder} knows no best update: its team was not evaluated on dev while it "
            "learned (backend local, learn.evaluate_every); give the update's number"
        )
    return found.update
