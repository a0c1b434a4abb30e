"""One run directory as a measurement: rewards, pass@k, speed and dollars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from orchestry.report.stats import Interval, difference, expected_best, interval, pass_at
from orchestry.store.journal import Answered, Event, Opened, Stopped
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run

KS = (1, 3, 5, 10)
"""The k of pass@k and of best-of-k."""


@dataclass(frozen=True, slots=True)
class Measures:
    """A run's figures. Rewards are in [0, 1]; intervals are over problems."""

    problems: int
    trajectories: int
    """Root to leaf, of all problems together."""
    reward: Interval
    """Of one trajectory: the policy's mean reward."""
    best: Interval
    """Of the best trajectory per problem: the reward of a search that knows the reward."""
    best_at: dict[int, Interval]
    """By k: of the best of k trajectories (unbiased), for each k that every problem has enough
    trajectories for. Empty if they come from a search, since they are not independent."""
    pass_at: dict[int, Interval]
    """By k: the chance that one of k trajectories solves a problem. Empty also if the task has no
    `solved` tag."""
    calls: int
    """Samples drawn, from a model or a cache."""
    input_tokens: int
    output_tokens: int
    tokens_per_s: float | None
    """Output tokens per second of wall time; None if all came from a cache."""
    usd: float
    stopped: str

    @property
    def calls_a_problem(self) -> float:
        """Samples drawn for each problem, in the mean."""
        return self.calls / self.problems

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {**asdict(self), "calls_a_problem": self.calls_a_problem}


def measured(run: Run) -> Measures | None:
    """The figures of a run's finished episodes; None if it has none."""
    summary, by_problem = run.summary, trajectory_rewards(run.episodes)
    if not by_problem:
        return None
    independent = _independent(run)
    return Measures(
        problems=len(by_problem),
        trajectories=sum(map(len, by_problem.values())),
        reward=interval([fmean(rewards) for rewards in by_problem.values()]),
        best=interval([max(rewards) for rewards in by_problem.values()]),
        best_at=_best_at(list(by_problem.values())) if independent else {},
        pass_at=_pass_at(run.episodes, summary.solved) if independent else {},
        calls=sum(record.calls for record in run.episodes),
        input_tokens=summary.input_tokens,
        output_tokens=summary.output_tokens,
        tokens_per_s=_speed(run.events),
        usd=summary.cost_usd,
        stopped=summary.stopped,
    )


def gain(found: Run, beside: Run, best: bool | None = None) -> Interval | None:
    """One run's reward minus another's, paired over the problems of both; None: no common problem.

    `best`: compare each problem's best trajectory instead of the mean of all. None: do so if the
    first run is a search."""
    figure = max if (searched(found) if best is None else best) else fmean
    sides = [trajectory_rewards(run.episodes) for run in (found, beside)]
    return difference(*({name: figure(row) for name, row in side.items()} for side in sides))


def searched(run: Run) -> bool:
    """Whether a run is measured by its best trajectories, as a search is, or by all of them."""
    return _search(run).get("strategy", "beam") in ("beam", "best_of_n")


def _independent(run: Run) -> bool:
    """Whether its trajectories share no sample."""
    search = _search(run)
    combined = search.get("joint", "aligned") == "cross"
    return not combined and search.get("strategy", "beam") != "beam"


def _search(run: Run) -> Mapping[str, Any]:
    found: Mapping[str, Any] = run.config.get("search", {})
    return found


def trajectory_rewards(records: Iterable[EpisodeRecord]) -> dict[str, list[float]]:
    """By problem, the rewards of all its trajectories, those of repeated episodes together; as the
    task scored them, without a judge's word."""
    found: dict[str, list[float]] = {}
    for record in records:
        rewards = found.setdefault(record.problem, [])
        rewards += [leaf.score.total for leaf in record.leaves()]
    return found


def _best_at(rewards: Sequence[Sequence[float]]) -> dict[int, Interval]:
    return _for_each_k([[expected_best(k, row) for row in rewards] for k in KS])


def _pass_at(records: Iterable[EpisodeRecord], solved: str | None) -> dict[int, Interval]:
    if solved is None:
        return {}
    counts: dict[str, tuple[int, int]] = {}
    for record in records:
        n, c = counts.get(record.problem, (0, 0))
        leaves = list(record.leaves())
        counts[record.problem] = n + len(leaves), c + record.tags()[solved]
    return _for_each_k([[pass_at(k, n, c) for n, c in counts.values()] for k in KS])


def _for_each_k(figures: Sequence[Sequence[float | None]]) -> dict[int, Interval]:
    """Intervals for the k that every problem has enough trajectories of."""
    whole = {k: [f for f in row if f is not None] for k, row in zip(KS, figures, strict=True)}
    return {
        k: interval(kept)
        for (k, kept), row in zip(whole.items(), figures, strict=True)
        if len(kept) == len(row)
    }


def _speed(events: Sequence[Event]) -> float | None:
    """Over the wall time of all processes that ended in order, from opening to stopping."""
    tokens, seconds, opened, fresh = 0, 0.0, None, 0
    for event in events:
        if isinstance(event, Opened):
            opened, fresh = event.at, 0
        elif isinstance(event, Answered) and event.source in ("provider", "weights"):
            fresh += event.completion.output_tokens
        elif isinstance(event, Stopped) and opened is not None:
            tokens, seconds, opened = tokens + fresh, seconds + event.at - opened, None
    return tokens / seconds if tokens and seconds > 0 else None
