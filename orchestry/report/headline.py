"""An experiment's results in sentences, for the head of RESULTS.md and the terminal.

A gain is claimed only on held-out problems, and only if its interval excludes zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from orchestry.report import neural
from orchestry.report.convergence import converged
from orchestry.report.curves import (
    Axis,
    axis,
    curve,
    dev_rewards,
    episode_reward,
    reward_name,
    window,
)
from orchestry.report.held_out import (
    Held,
    ahead,
    baselines,
    by_best,
    common_problems,
    held_evaluations,
    on_own_task,
    shows_gain,
    team_on,
    untrained,
)
from orchestry.report.measures import REWARD, measure, searched, trajectory_rewards
from orchestry.report.outcomes import over_time, rates
from orchestry.report.runs import Arm, Experiment, Salvaged, arms
from orchestry.report.stats import Interval
from orchestry.report.text import counted, dollars, duration
from orchestry.store.records import Summary


def headline(experiment: Experiment) -> list[str]:
    """Sentences on one run, in plain text."""
    if experiment.run.neural:
        return [*neural.headline(experiment), *_ending(experiment.run)]
    return [
        *_played(experiment),
        *_learned(experiment),
        *_ending(experiment.run),
        *_held_out(experiment),
    ]


def _ending(run: Salvaged) -> Iterator[str]:
    """Whether the run collapsed, and whether the curve still moves, if it is long enough to say."""
    yield from run.collapses
    trend = converged(run)
    if trend and trend.change:
        figure = "Return" if run.neural else "Reward"
        yield (
            f"{figure} over the last third of its curve: {trend}. Points of a curve follow "
            "each other, so p tends to be too small and the interval too narrow."
        )


def over_seeds(arm: Arm) -> list[str]:
    """Sentences on an arm with several seeds; none for a single seed."""
    found = curve(arm.runs, episode_reward, window(arm.runs)) if len(arm.runs) > 1 else None
    if found is None:
        return []
    unit = axis(arm.runs[0])
    spans = [
        f"{mean:.3f} ({low:.3f} to {high:.3f})"
        for mean, low, high in zip(found.mean, found.low, found.high, strict=True)
    ]
    return [
        f"Mean of {counted(len(arm.runs), 'seed')}, and the lowest to the highest: "
        f"{reward_name(arm.runs[0])} {spans[0]} {_at(unit, found.x[0])}, {spans[-1]} "
        f"{_at(unit, found.x[-1])}.",
        *_rates_over_seeds(arm),
        *_held_over_seeds(arm),
    ]


def _rates_over_seeds(arm: Arm) -> Iterator[str]:
    """Cooperation and problems solved, early and late."""
    for rate in rates(arm.runs):
        changes = [over_time(run, rate) for run in arm.runs]
        ends = [[one.first for one in changes if one], [one.last for one in changes if one]]
        if all(map(len, ends)):
            first, last = (
                f"{rate.words(fmean(side))} ({rate.words(min(side))} to {rate.words(max(side))})"
                for side in ends
            )
            yield (
                f"{_named(rate.name)}, mean over the seeds: {first} in the first quarter of the "
                f"episodes, {last} in the last."
            )


def _named(name: str) -> str:
    return f"{name[0].upper()}{name[1:]}"


def _at(unit: Axis, x: int) -> str:
    return f"after {counted(x, 'update')}" if unit == "updates" else f"at episode {x}"


def _held_over_seeds(arm: Arm) -> Iterator[str]:
    """The last evaluation of each seed, if every seed has one on the same split."""
    lasts = [max(found, key=_newest) for one in arm.experiments if (found := on_own_task(one))]
    if len(lasts) < len(arm.experiments) or len({(h.split, h.samples) for h in lasts}) > 1:
        return
    best = searched(lasts[0].run)
    means = [(held.measures.best if best else held.measures.reward).mean for held in lasts]
    yield (
        f"On {lasts[0].split} problems the seeds' last evaluations have a mean "
        f"{'best of k' if best else 'reward'} of {fmean(means):.3f} ({min(means):.3f} to "
        f"{max(means):.3f})."
    )


def _newest(held: Held) -> tuple[int, bool, int]:
    return held.update or 0, held.split == "test", held.samples or 0


def _played(experiment: Experiment) -> Iterator[str]:
    run, summary = experiment.run, experiment.run.summary
    cached = f" and {summary.cache_hits:,} from the cache" if summary.cache_hits else ""
    updates = f", {updated(summary)}" if summary.updates else ""
    yield (
        f"Task {summary.task}, backend {summary.backend} ({summary.strategy}), model "
        f"{summary.model}, seed {run.config.get('seed')}: {counted(len(run.episodes), 'episode')}"
        f"{updates}, {counted(summary.calls, 'call')}{cached}, {dollars(summary.cost_usd)}, "
        f"{duration(run.took)}."
    )


def updated(summary: Summary) -> str:
    """The number of updates and, for a library, their result."""
    updates = counted(summary.updates, "update")
    if summary.backend == "local":
        return updates
    if not summary.accepted:
        return f"{updates} (no accepted behaviour in the prompts)"
    return f"{updates} ({counted(summary.accepted, 'accepted behaviour')} in the prompts)"


def _learned(experiment: Experiment) -> Iterator[str]:
    run = experiment.run
    smooth = window([run])
    found = curve([run], episode_reward, smooth)
    if found is None:
        return
    unit, top = axis(run), max(range(len(found.x)), key=lambda at: found.mean[at])
    over = f", means of {smooth} {unit}" if smooth > 1 else ""
    yield (
        f"{_named(reward_name(run))} on its own problems: first {found.mean[0]:.3f}, best "
        f"{found.mean[top]:.3f} ({_at(unit, found.x[top])}), last {found.mean[-1]:.3f}{over}."
    )
    for change in filter(None, (over_time(run, rate) for rate in rates([run]))):
        words, name = change.figure.words, change.figure.name
        yield (
            f"{_named(name)}: {words(change.first)} of the trajectories in the first "
            f"quarter of the episodes, {words(change.last)} in the last."
        )
    if run.summary.power:
        yield f"Learning: {run.summary.power}."
    if len(dev := dev_rewards(run)) > 1:
        first, last = min(dev), max(dev)
        yield (
            f"On dev problems: {dev[first]:.3f} after {counted(first, 'update')}, {dev[last]:.3f} "
            f"after {last}."
        )


def _held_out(experiment: Experiment) -> Iterator[str]:
    found = held_evaluations(experiment)
    if not on_own_task(experiment) and experiment.run.config.get("split", "train") == "train":
        yield (
            "Nothing was measured on held-out problems, so no gain is claimed: orchestry evaluate "
            f"{experiment.run.folder} plays them."
        )
    for held in found:
        yield from _compared(held, untrained(held, found), "the team as the run began")
    for held in baselines(experiment):
        team = team_on(experiment, held)
        yield from _compared(team, held, held.name.replace("_", " ")) if team else ()


def _compared(team: Held, other: Held | None, name: str) -> Iterator[str]:
    """The team compared with something else on the same problems."""
    difference = ahead(team, other) if other else None
    if other is None or difference is None:
        return
    best, both = by_best(team.run, other), common_problems(team, other)
    by = measure(team.run, other.run)
    over = max if best else fmean
    figures = [
        fmean(map(over, trajectory_rewards(held.run.episodes, by).values()))
        for held in (team, other)
    ]
    calls = " and ".join(f"{held.measures.calls_per_problem:.1f}" for held in (team, other))
    said = [*(["best of k"] if best else []), *([] if by is REWARD else [by.name])]
    of = f" ({', '.join(said)})" if said else ""
    who = "The team" if team.update is None else f"The team after update {team.update}"
    yield (
        f"{who} earns {figures[0]:.3f}{of} on {team.split} problems{team.elsewhere}, {name} "
        f"{figures[1]:.3f}, at {calls} calls per problem; paired over the "
        f"{counted(both, 'problem')} that both played: {signed(difference)}: "
        f"{shows_gain(difference, both)}."
    )


def signed(difference: Interval) -> str:
    """A difference with its 95 % interval."""
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def summary(experiments: Sequence[Experiment]) -> list[tuple[str, list[str]]]:
    """Per run, then per arm with several seeds: its name and its sentences, in plain text."""
    found = [
        (one.label, [*headline(one), *(f"Missing: {what}." for what in one.missing)])
        for one in experiments
    ]
    of_arms = [
        (f"{arm.label}, all seeds", [*neural.over_seeds(arm), *over_seeds(arm)])
        for arm in arms(experiments)
    ]
    return found + [(name, said) for name, said in of_arms if said]
