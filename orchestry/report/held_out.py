"""A run's measurements: its team on held-out problems, and its baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestry.report.measures import REWARD, Measures, gain, measure, searched
from orchestry.report.runs import Experiment, Salvaged
from orchestry.report.stats import FEWEST_PROBLEMS, Interval
from orchestry.store.journal import Learned
from orchestry.store.measurements import Measurement, Transfer, transfer_of
from orchestry.store.run import Run

BEST_OF_N = "best_of_n"
_BEGAN = "as the run began"


@dataclass(frozen=True, slots=True)
class Held:
    """A measurement: the team, the problems, and the results."""

    name: str
    """The team at an update, or the baseline's name."""
    split: str
    update: int | None
    """0: untrained; None if the run learned nothing, and for baselines."""
    samples: int | None
    """Independent trajectories per problem; None: the run's own search."""
    run: Salvaged
    measures: Measures
    checkpoint: str = ""
    """The folder, in the run, of the adapters that played."""
    transfer: Transfer | None = None
    """How it played another task; None: the run's own."""

    @property
    def words(self) -> str:
        """Its name, samples per problem and another task, as text."""
        samples = f", {self.samples} samples each" if self.samples else ""
        return f"{self.name.replace('_', ' ')}{samples}{self.elsewhere}"

    @property
    def elsewhere(self) -> str:
        """The other task, with who plays what there; '' for the run's own."""
        if self.transfer is None:
            return ""
        said = self.transfer.words
        return f", on {self.transfer.task}{f' ({said})' if said else ''}"

    @property
    def measured(self) -> tuple[str, int | None, str]:
        """What must be equal for two teams to be compared."""
        return self.split, self.samples, self.elsewhere


def in_words(folder: str, run: Run) -> str:
    """The name of a measurement's folder as text: `fixed--test--samples-10` is "fixed, test split,
    10 samples each".
    """
    stage = Measurement.parse(folder)
    if stage is None:
        return folder
    said = [stage.baseline.replace("_", " ")] if stage.baseline else []
    said.append(f"{stage.split} split")
    if stage.update is not None:
        said.append(_after(stage.update))
    if stage.samples and not _sized(run):
        said.append(f"{stage.samples} samples each")
    if stage.task:
        said.append(f"on {stage.task}")
    return ", ".join(said)


def _after(update: int) -> str:
    return f"after update {update}" if update else _BEGAN


def _sized(run: Run) -> bool:
    """Whether it draws as many trajectories as the search's calls allow."""
    return bool(run.config.get("search", {}).get("strategy") == BEST_OF_N)


def held_evaluations(experiment: Experiment) -> list[Held]:
    """The run's evaluations that have finished an episode: by split, samples and update; those on
    other tasks come last."""
    updates = {e.update: e.state for e in experiment.run.events if isinstance(e, Learned)}
    found = []
    for stage, run, measures in _stages(experiment.evaluations):
        number = stage.update
        state = updates.get(number or 0, {})
        name = "the team" if number is None else _after(number)
        place = str(state.get("checkpoint", ""))
        how = transfer_of(run.folder) if stage.task else None
        found.append(Held(name, stage.split, number, stage.samples, run, measures, place, how))
    return sorted(
        found, key=lambda one: (one.elsewhere, one.split, one.samples or 0, one.update or 0)
    )


def on_own_task(experiment: Experiment) -> list[Held]:
    """Those on the run's own task."""
    return [one for one in held_evaluations(experiment) if one.transfer is None]


def baselines(experiment: Experiment) -> list[Held]:
    """The baselines beside the run that have finished an episode, by split and name."""
    found = []
    for stage, run, measures in _stages(experiment.baselines):
        asked = None if _sized(run) else stage.samples  # None: the search's calls, so compare them
        found.append(Held(str(stage.baseline), stage.split, None, asked, run, measures))
    return sorted(found, key=lambda one: (one.split, one.name, one.samples or 0))


def of_equal_reward(experiment: Experiment) -> list[Held]:
    """The baselines that earn the reward of the run's team: not `single`, if it is scored without
    some parts."""
    return [one for one in baselines(experiment) if measure(experiment.run, one.run) is REWARD]


def untrained(one: Held, among: list[Held]) -> Held | None:
    """The untrained team on the same problems in the same way; None for itself."""
    if not one.update:
        return None
    alike = (other for other in among if other.measured == one.measured)
    return next((other for other in alike if other.update == 0), None)


def team_on(experiment: Experiment, like: Held) -> Held | None:
    """The run's team on a baseline's problems: after its last evaluated update, with the same
    number of samples if there is such an evaluation."""
    on = [one for one in on_own_task(experiment) if one.split == like.split]
    return max(on, key=lambda one: (one.update or 0, one.samples == like.samples), default=None)


def by_best(team: Run, other: Held) -> bool:
    """Whether two teams are compared by each problem's best trajectory instead of the mean; so for
    a search and best of n."""
    return searched(team) or other.name == BEST_OF_N


def ahead(team: Held, other: Held) -> Interval | None:
    """The team's lead, paired by problem, in `measure`; None without common problems."""
    return gain(team.run, other.run, by_best(team.run, other))


def lead(team: Held, other: Held) -> str:
    """What the lead is in, for a sentence: '' for the reward."""
    by = measure(team.run, other.run)
    return "" if by is REWARD else f" in {by.name}"


def common_problems(one: Held, other: Held) -> int:
    """Number of common problems."""
    return len({e.problem for e in one.run.episodes} & {e.problem for e in other.run.episodes})


def shows_gain(difference: Interval, problems: int) -> str:
    """What a difference over `problems` problems shows.

    >>> shows_gain(Interval(0.1, -0.1, 0.3), 20)
    'no difference is shown: the interval covers 0'
    """
    if problems < FEWEST_PROBLEMS:
        return f"fewer than {FEWEST_PROBLEMS} problems show no difference"
    if difference.low <= 0 <= difference.high:
        return "no difference is shown: the interval covers 0"
    return "higher" if difference.mean > 0 else "lower"


def _stages(runs: Mapping[str, Salvaged]) -> Iterator[tuple[Measurement, Salvaged, Measures]]:
    """The measurements of runs that have an episode, from their folders' names."""
    for folder, run in runs.items():
        stage = Measurement.parse(folder)
        if stage is not None and run.measures is not None:
            yield stage, run, run.measures
