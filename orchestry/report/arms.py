"""Arms of a comparison: the runs that differ by nothing but their seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry.report.experiment import Experiment
from orchestry.report.labels import settings, telling, unique
from orchestry.report.salvage import Salvaged


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting, played with one seed or several."""

    label: str
    number: int
    """Its place in the report, from 0: the same colour in every figure."""
    experiments: tuple[Experiment, ...]

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.experiments[0].run.config.get("task"))

    @property
    def runs(self) -> list[Salvaged]:
        """Those that have finished an episode."""
        return [one.run for one in self.experiments if one.run.episodes]

    @property
    def seeds(self) -> list[Any]:
        """The seed of each of its runs."""
        return [one.run.config.get("seed") for one in self.experiments]


def arms(experiments: Sequence[Experiment]) -> tuple[Arm, ...]:
    """The arms in order of their first runs."""
    found: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        found.setdefault(_but_for_the_seed(experiment), []).append(experiment)
    groups = list(found.values())
    told = settings([{**group[0].run.config, "seed": None} for group in groups])
    named = [_named(group, said) for group, said in zip(groups, told, strict=True)]
    return tuple(
        Arm(label, number, tuple(group))
        for number, (label, group) in enumerate(zip(unique(named), groups, strict=True))
    )


def _named(group: Sequence[Experiment], said: str) -> str:
    """A run alone has its own label, several seeds what tells them from the other arms."""
    first = group[0]
    return first.label if len(group) == 1 else said or str(first.run.config.get("task", "runs"))


def by_task(found: Sequence[Arm]) -> Mapping[str, tuple[Arm, ...]]:
    """Arms of each task: rewards of different tasks say nothing of each other."""
    tasks = dict.fromkeys(arm.task for arm in found)
    return {task: tuple(arm for arm in found if arm.task == task) for task in tasks}


def _but_for_the_seed(experiment: Experiment) -> str:
    return repr(sorted(telling({**experiment.run.config, "seed": None}).items()))
