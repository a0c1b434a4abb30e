"""The folder of a recipe: its config, and one run directory per stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from orchestry.core.recipes import RecipeConfig, Step
from orchestry.store.journal import Event, Learned
from orchestry.store.measurements import EVALUATIONS, Measurement
from orchestry.store.run import Run, read_config
from orchestry.store.summary import end_of

STAGES = "stages"
TOOK = "took.json"
"""In a distilled stage: how many seconds it took."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a recipe."""

    number: int
    """From 1."""
    step: Step
    folder: Path
    """Its run directory, which exists once it has begun."""

    @property
    def begun(self) -> bool:
        """Whether it is a run that can be read."""
        files = ("config.yaml", "journal.jsonl")
        return all((self.folder / name).is_file() for name in files)

    def done(self, events: list[Event]) -> bool:
        """Whether it has come to its end; `events` are those of its journal."""
        return finished(events)


def finished(events: list[Event]) -> bool:
    """Whether a run has come to its end."""
    end = end_of(events)
    return end is not None and end.reason == "done"


def stages_of(folder: Path, steps: tuple[Step, ...]) -> tuple[Stage, ...]:
    """The stages of a recipe in that folder."""
    return tuple(
        Stage(number, step, folder / STAGES / f"{number}-{step}")
        for number, step in enumerate(steps, start=1)
    )


def recipe_in(folder: Path) -> tuple[Stage, ...]:
    """The stages of the recipe that a folder holds; () for any other folder."""
    if not (folder / "config.yaml").is_file() or (folder / "journal.jsonl").exists():
        return ()
    steps = (read_config(folder).get("recipe") or {}).get("steps") or ()
    return stages_of(folder, cast(tuple[Step, ...], tuple(steps)))


def measured_before(stages: tuple[Stage, ...], stage: Stage) -> Stage | None:
    """The last stage before this one that left the team with which it began, as it answers here:
    prompts of an API are no start for weights."""
    changed = [one for one in stages[: stage.number - 1] if one.step != "search"]
    last = changed[-1] if changed else None
    here, there = (weights_answer(stages, one) for one in (stage, last or stage))
    return last if here == there else None


def weights_answer(stages: tuple[Stage, ...], stage: Stage) -> bool:
    """Whether trained weights answer in the stage."""
    before = stages[: stage.number]
    return any(one.step in ("distil", "magrpo") for one in before)


def measurements(
    stages: tuple[Stage, ...], stage: Stage, asked: RecipeConfig
) -> list[tuple[Path, int | None]]:
    """The measurements of a finished stage: their folders, and the update that is played (None:
    the last). The team that it began with comes first, where no stage before has measured it."""
    if stage.step == "search" or not asked.samples:
        return []
    updates = [one.update for one in Run(stage.folder).events if isinstance(one, Learned)]
    last = max(updates, default=None)
    first = last is not None and measured_before(stages, stage) is None
    return [
        (_place(stage, asked, number), update)
        for number, update in ([(0, 0)] if first else []) + [(last, None)]
    ]


def _place(stage: Stage, asked: RecipeConfig, update: int | None) -> Path:
    found = Measurement(split=asked.split, update=update, samples=asked.samples)
    return stage.folder / EVALUATIONS / found.name
