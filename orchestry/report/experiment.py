"""A run with what was measured around it: its evaluations and its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.report.labels import labels
from orchestry.report.salvage import Salvaged
from orchestry.store.measurements import BASELINES, EVALUATIONS, FORMS, Measurement
from orchestry.store.run import existing


@dataclass(frozen=True, slots=True)
class Experiment:
    """A run and what was measured around it."""

    label: str
    """Short, unique among the runs of a report: for tables and legends."""
    run: Salvaged
    evaluations: Mapping[str, Salvaged]
    """By name of the folder under RUN/evaluations/."""
    baselines: Mapping[str, Salvaged]
    """By name of the folder under RUN/baselines/."""
    missing: tuple[str, ...] = ()
    """What a reader has to know that this experiment lacks, a sentence each."""


def read_experiments(folders: Sequence[Path]) -> tuple[Experiment, ...]:
    """The runs in these folders, in the order given, each with what lies in it.

    Raises ConfigError for no folder, one that holds no run, and one given twice; StoreError for a
    run of which nothing can be read. What is unfinished or partly damaged is no error: `missing`
    names it.
    """
    if not folders:
        raise ConfigError("no run is given: name the directories that `orchestry run` printed")
    places = [folder.resolve() for folder in folders]
    twice = [
        folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1
    ]
    if twice:
        raise ConfigError(f"{twice[0]} is given twice: name each run once")
    runs = [_read(folder) for folder in folders]
    named = labels([run.config for run in runs], [place.name for place in places])
    return tuple(_around(run, label) for run, label in zip(runs, named, strict=True))


def _read(folder: Path) -> Salvaged:
    run = Salvaged(existing(folder))
    _ = run.config, run.events  # what can't be read at all is said before anything is written
    return run


def _around(run: Salvaged, label: str) -> Experiment:
    missing = list(run.missing)
    evaluations = _inside(run.folder / EVALUATIONS, missing)
    baselines = _inside(run.folder / BASELINES, missing)
    return Experiment(label, run, evaluations, baselines, tuple(missing))


def _inside(folder: Path, missing: list[str]) -> dict[str, Salvaged]:
    """The runs in a run's subfolder, by name; what they lack goes to `missing`."""
    found = {}
    places = [place for place in folder.iterdir() if place.is_dir()] if folder.is_dir() else []
    for place in sorted(places):
        where = f"{folder.name}/{place.name}"
        stage = Measurement.parse(place.name)
        if stage is None or (stage.baseline is None) != (folder.name == EVALUATIONS):
            missing.append(f"{where} is left out: its name is not of the form {FORMS}")
            continue
        try:
            run = _read(place)
        except OrchestryError as error:
            missing.append(f"{where} is left out: {error}")
            continue
        missing += [f"{where}: {'; '.join(run.missing)}"] if run.missing else []
        found[place.name] = run
    return found
