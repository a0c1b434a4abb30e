"""Two runs beside each other: where their settings differ, and their figures with differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, Literal

from orchestry.report.held_out import by_best, held_evaluations
from orchestry.report.measures import REWARD, Measure, measure, searched
from orchestry.report.runs import Experiment, Salvaged, differing, telling_settings
from orchestry.report.stats import Interval, difference
from orchestry.store.records import NodeRecord
from orchestry.store.run import Run

REWARDED = ("task", "task_path", "options", "weights")
"""Runs that differ here may play other problems of equal names, or be paid for something else."""
Kind = Literal["held-out", "reward", ""]
"""A reward on held-out problems, one on a run's own, or another figure."""
Leaf = Callable[[NodeRecord], float | None]
"""A figure of one trajectory."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both runs."""

    name: str
    first: float | None
    """Of a figure that is compared, over the problems of both."""
    second: float | None
    ahead: Interval | None = None
    """The second's less the first's, paired by problem; None: not compared."""
    problems: int = 0
    """Problems that both played."""
    kind: Kind = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two runs."""

    settings: Mapping[str, tuple[Any, Any]]
    """By dotted key, the first's value and the second's; None where a run lacks the key. Settings
    on which no result depends are left out."""
    figures: tuple[Figure, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def compared(first: Experiment, second: Experiment) -> Comparison:
    """What a second run has more than a first one."""
    flat = [telling_settings(one.run.config) for one in (first, second)]
    settings = {key: (flat[0].get(key), flat[1].get(key)) for key in differing(flat)}
    if first.run.neural and second.run.neural:
        return Comparison(settings, tuple(_returns(first.run, second.run)))
    if first.run.neural or second.run.neural:
        return Comparison(settings, tuple(_costs(first.run, second.run)))
    found = (*_held_out(first, second), *_rewards(first.run, second.run))
    return Comparison(settings, (*found, *_costs(first.run, second.run)))


def _held_out(first: Experiment, second: Experiment) -> Iterator[Figure]:
    """Each run's last team, where both were measured in the same way."""
    teams = [{held.measured: held for held in held_evaluations(one)} for one in (first, second)]
    common = [key for key in teams[0] if key in teams[1]]
    for split, samples, task in sorted(common, key=lambda k: (bool(k[2]), k[0] != "test", str(k))):
        one, other = (found[split, samples, task] for found in teams)
        updates = " and ".join(_after(held.update) for held in (one, other))
        each = f", {samples} samples each" if samples else ""
        best, by = by_best(other.run, one), measure(one.run, other.run)
        name = f"held-out {_named(by, best)}, {split}{each}{task}"
        over = max if best else fmean
        found = _paired(f"{name} ({updates})", one.run, other.run, partial(_measured, by), over)
        yield replace(found, kind="held-out")


def _named(by: Measure, best: bool) -> str:
    """`reward` or `best of k`; of another measure that too."""
    if by is REWARD:
        return "best of k" if best else by.name
    return f"{by.name}{', best of k' if best else ''}"


def _after(update: int | None) -> str:
    return "nothing learned" if update is None else f"update {update}"


def _rewards(first: Salvaged, second: Salvaged) -> Iterator[Figure]:
    """On the problems of the runs themselves: rewards, parts of the score, and tags."""
    by = measure(first, second)
    rewards = [_paired(by.name, first, second, partial(_measured, by))]
    if searched(first) or searched(second):
        rewards.append(_paired(_named(by, True), first, second, partial(_measured, by), max))
    yield from (replace(one, kind="reward") for one in rewards)
    leaves = [leaf for run in (first, second) for one in run.episodes for leaf in one.leaves()]
    names = dict.fromkeys(part.name for leaf in leaves for part in leaf.score.parts)
    for name in names if len(names) > 1 else ():
        yield _paired(f"part {name}", first, second, partial(_part, name))
    for tag in sorted({tag for leaf in leaves for tag in leaf.score.tags}):
        yield _paired(f"share {tag}", first, second, partial(_tagged, tag))


def _paired(
    name: str, first: Run, second: Run, figure: Leaf, over: Callable[[list[float]], float] = fmean
) -> Figure:
    """A figure per problem, by `over` from its trajectories, and the mean over problems."""
    sides = [_by_problem(run, figure, over) for run in (first, second)]
    means = [fmean(side.values()) if side else None for side in sides]
    both = sides[0].keys() & sides[1].keys()
    if not both or any(first.config.get(key) != second.config.get(key) for key in REWARDED):
        return Figure(name, means[0], means[1])
    means = [fmean(side[problem] for problem in both) for side in sides]
    return Figure(name, means[0], means[1], difference(sides[1], sides[0]), len(both))


def _by_problem(run: Run, figure: Leaf, over: Callable[[list[float]], float]) -> dict[str, float]:
    found = dict[str, list[float]]()
    for one in run.episodes:
        figures = [value for leaf in one.trajectories() if (value := figure(leaf)) is not None]
        found.setdefault(one.problem, []).extend(figures)
    return {problem: over(figures) for problem, figures in found.items() if figures}


def _measured(by: Measure, leaf: NodeRecord) -> float:
    return by.of(leaf.score)


def _part(name: str, leaf: NodeRecord) -> float | None:
    """None for a trajectory whose score lacks the part."""
    return next((part.value for part in leaf.score.parts if part.name == name), None)


def _tagged(tag: str, leaf: NodeRecord) -> float:
    return float(tag in leaf.score.tags)


def _costs(first: Salvaged, second: Salvaged) -> Iterator[Figure]:
    """What each took."""
    both = (first, second)
    if not any(run.neural for run in both):
        for name in ("episodes", "calls", "input_tokens", "output_tokens", "updates"):
            values = [float(getattr(run.summary, name)) for run in both]
            yield Figure(name.replace("_", " "), values[0], values[1])
    yield Figure("dollars", first.summary.cost_usd, second.summary.cost_usd)
    yield Figure("seconds", first.took, second.took)


def _returns(first: Salvaged, second: Salvaged) -> Iterator[Figure]:
    """The last figures of two runs of backend ppo: each is of games of its own."""
    lasts = [run.batches[-1] if run.batches else {} for run in (first, second)]
    for name in dict.fromkeys(name for last in lasts for name in last if name != "at"):
        yield Figure(name, lasts[0].get(name), lasts[1].get(name))
    yield Figure("seconds", first.took, second.took)
