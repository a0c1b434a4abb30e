"""What each stage of a recipe brought: the team before and after it, calls, dollars and time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.core.recipes import RecipeConfig
from orchestry.report.held_out import shows_gain
from orchestry.report.measures import Measures, gain
from orchestry.report.runs import Salvaged
from orchestry.report.stats import Interval
from orchestry.report.text import counted, dollars, duration, inline, table
from orchestry.store.recipes import TOOK, Stage, finished, measured_before, measurements, recipe_in
from orchestry.store.run import read_config
from orchestry.store.summary import books

_HEADER = ("stage", "before", "after", "change", "best of k before", "best of k after")
_COSTS = ("calls", "dollars", "time")


@dataclass(frozen=True, slots=True)
class Brought:
    """One stage."""

    stage: Stage
    state: str
    """`done`, `unfinished` or `not begun`."""
    calls: int = 0
    usd: float = 0.0
    seconds: float = 0.0
    before: Salvaged | None = None
    """The team that it began with, on held-out problems; None: not measured."""
    after: Salvaged | None = None

    @property
    def change(self) -> Interval | None:
        """Mean reward of a trajectory after it minus before, paired by problem."""
        return gain(self.after, self.before, False) if self.after and self.before else None

    @property
    def name(self) -> str:
        """For a table."""
        left = "" if self.state == "done" else f" ({self.state})"
        return f"{self.stage.number} {self.stage.step}{left}"

    def plain(self) -> dict[str, Any]:
        """As JSON data; rewards on the problems that measure, with their intervals."""
        found: dict[str, Any] = {"run_dir": str(self.stage.folder), "step": self.stage.step}
        found |= {"state": self.state, "calls": self.calls, "usd": self.usd}
        found["seconds"] = self.seconds
        for name, run in (("before", self.before), ("after", self.after)):
            found[name] = _measures(run).reward.plain() if run else None
        return {**found, "change": self.change.plain() if self.change else None}


def brought(folder: Path) -> list[Brought]:
    """The stages of the recipe in that folder; none if it holds no recipe."""
    stages = recipe_in(folder)
    asked = RecipeConfig.model_validate(read_config(folder)["recipe"]) if stages else RecipeConfig()
    return [_brought(stages, stage, asked) for stage in stages]


def _brought(stages: tuple[Stage, ...], stage: Stage, asked: RecipeConfig) -> Brought:
    if not stage.begun:
        return Brought(stage, "not begun")
    events = Salvaged(stage.folder).events
    found, state = books(events), "done" if finished(events) else "unfinished"
    took = stage.folder / TOOK
    seconds = json.loads(took.read_text())["seconds"] if took.is_file() else found.seconds
    before = after = None
    if state == "done":
        before, after = _sides(stages, stage, asked)
    calls = sum(row.calls for row in found.usage)
    return Brought(stage, state, calls, found.cost_usd, seconds, before, after)


def _sides(
    stages: tuple[Stage, ...], stage: Stage, asked: RecipeConfig
) -> tuple[Salvaged | None, Salvaged | None]:
    """The measurements before and after a stage, as far as they are finished."""
    places = [place for place, _ in measurements(stages, stage, asked)]
    if not places:
        return None, None
    earlier = measured_before(stages, stage)
    if len(places) == 1 and earlier is not None:
        places = [*(place for place, _ in measurements(stages, earlier, asked)[-1:]), *places]
    runs = [_measured(place) for place in places]
    return (runs[0] if len(runs) > 1 else None), runs[-1]


def _measured(place: Path) -> Salvaged | None:
    if not (place / "config.yaml").is_file():
        return None
    run = Salvaged(place)
    return run if run.measures is not None and finished(run.events) else None


def stages_table(found: list[Brought]) -> str:
    """As Markdown."""
    rows = [[inline(one.name), *_rewards(one), *_costs(one)] for one in found]
    measured = next((one.after for one in found if one.after), None)
    text = table((*_HEADER, *_COSTS), rows)
    return f"{text}\n\n{_explained(measured)}" if measured else text


def _explained(measured: Salvaged) -> str:
    figures = _measures(measured)
    split, samples = measured.config["split"], measured.config["search"]["k_samples"]
    return (
        f"Before, after: reward (the mean over all trajectories) on "
        f"{counted(figures.problems, 'problem')} of {split}, with "
        "the 95 % interval of the mean (bootstrap over problems). The change is "
        f"paired by problem. Best of k: the best of {samples} trajectories per problem; "
        "`best of k before` is what best of n reaches without the stage. It does not count what "
        "the stage itself cost. Calls, dollars and time are the stage's own, without these "
        "measurements."
    )


def _measures(run: Salvaged) -> Measures:
    assert run.measures is not None, "only measured runs are compared"
    return run.measures


def _rewards(one: Brought) -> list[str]:
    means = [str(_measures(run).reward) if run else "-" for run in (one.before, one.after)]
    bests = [f"{_measures(run).best.mean:.3f}" if run else "-" for run in (one.before, one.after)]
    return [*means, _signed(one.change), *bests]


def _signed(change: Interval | None) -> str:
    if change is None:
        return "-"
    return f"{change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"


def _costs(one: Brought) -> list[str]:
    if one.state == "not begun":
        return ["-"] * 3
    return [f"{one.calls:,}", dollars(one.usd), duration(one.seconds)]


def stages_said(found: list[Brought]) -> Iterator[str]:
    """A sentence per stage."""
    for one in found:
        calls, usd, took = _costs(one)
        spent = f": {calls} calls, {usd}, {took}" if one.state != "not begun" else ""
        said = f"Stage {one.name}{spent}."
        if (change := one.change) is not None and one.before and one.after:
            means = [f"{_measures(run).reward.mean:.3f}" for run in (one.before, one.after)]
            shown = shows_gain(change, _measures(one.after).problems)
            said += f" Reward {' -> '.join(means)}, {_signed(change)}: {shown}."
        yield said
