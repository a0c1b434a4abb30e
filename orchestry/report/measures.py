"""One run directory as a measurement: rewards, pass@k, speed and dollars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from orchestry.core.types import Score
from orchestry.report.stats import Interval, difference, expected_best, interval, pass_at
from orchestry.store.journal import Answered, Event, Opened, Stopped
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run

KS = (1, 3, 5, 10)
"""The k of pass@k and of best-of-k."""
SINGLE = "single"


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a trajectory by which runs are compared."""

    name: str
    of: Callable[[Score], float]


REWARD = Measure("reward", lambda score: score.total)


@dataclass(frozen=True, slots=True)
class Measures:
    """A run's figures. Rewards are in [0, 1]; intervals are over problems."""

    problems: int
    trajectories: int
    """Finished trajectories over all problems."""
    reward: Interval
    """The reward, the mean over all trajectories: measures the policy."""
    best: Interval
    """Best of k, the mean over each problem's best: measures a search that knows the reward."""
    best_at: dict[int, Interval]
    """By k: mean reward of the best of k trajectories (unbiased), for each k for which every
    problem has enough trajectories. Empty for a search, whose trajectories are not independent."""
    pass_at: dict[int, Interval]
    """By k: the probability that one of k trajectories solves a problem. Also empty if the task has
    no `solved` tag."""
    calls: int
    """Samples, from a model or the cache."""
    input_tokens: int
    output_tokens: int
    tokens_per_s: float | None
    """Output tokens per second of wall time; None if all came from the cache."""
    usd: float
    """Cached answers count as they would cost, so that it does not depend on what ran before."""
    stopped: str

    @property
    def calls_per_problem(self) -> float:
        """Mean number of samples per problem."""
        return self.calls / self.problems

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {**asdict(self), "calls_per_problem": self.calls_per_problem}


def measured(run: Run) -> Measures | None:
    """The figures of a run's finished episodes; None if it has none."""
    summary, by_problem = run.summary, trajectory_rewards(run.episodes)
    if not by_problem:
        return None
    independent, answers = _independent(run), _answers(run.events)
    return Measures(
        problems=len(by_problem),
        trajectories=sum(map(len, by_problem.values())),
        reward=interval([fmean(rewards) for rewards in by_problem.values()]),
        best=interval([max(rewards) for rewards in by_problem.values()]),
        best_at=_best_at(list(by_problem.values())) if independent else {},
        pass_at=_pass_at(run.episodes, summary.solved) if independent else {},
        calls=sum(record.calls for record in run.episodes),
        input_tokens=sum(one.completion.input_tokens for one in answers),
        output_tokens=sum(one.completion.output_tokens for one in answers),
        tokens_per_s=_speed(run.events),
        usd=round(summary.cost_usd + sum(one.saved for one in answers), 9),
        stopped=summary.stopped,
    )


def gain(found: Run, beside: Run, best: bool | None = None) -> Interval | None:
    """One run's measure minus another's (see `measure`), paired over the problems of both; None: no
    common problem.

    `best`: compare each problem's best trajectory instead of the mean of all. None: do so if the
    first run is a search."""
    figure = max if (searched(found) if best is None else best) else fmean
    by = measure(found, beside)
    sides = [trajectory_rewards(run.episodes, by) for run in (found, beside)]
    return difference(*({name: figure(row) for name, row in side.items()} for side in sides))


def measure(one: Run, other: Run) -> Measure:
    """What two runs are compared by: the reward. Where only one of them is of baseline `single`,
    which is scored without what only a team can earn: the pass rate, or, if the task has no
    `solved`, the mean of the parts that both have."""
    if (one.config.get("baseline") == SINGLE) == (other.config.get("baseline") == SINGLE):
        return REWARD
    leaves = ([leaf for record in run.episodes for leaf in record.leaves()] for run in (one, other))
    parts = [{part.name for leaf in found for part in leaf.score.parts} for found in leaves]
    if parts[0] == parts[1]:
        return REWARD
    if tag := one.summary.solved or other.summary.solved:
        return Measure("pass rate", lambda score: float(tag in score.tags))
    both = parts[0] & parts[1]
    return Measure(
        f"reward for {', '.join(sorted(both))}",
        lambda score: Score(parts=tuple(p for p in score.parts if p.name in both)).total,
    )


def searched(run: Run) -> bool:
    """Whether a run is measured by its best trajectories (a search) or by all."""
    return _search(run).get("strategy", "beam") in ("beam", "best_of_n")


def _independent(run: Run) -> bool:
    """Whether its trajectories are independent (share no sample)."""
    search = _search(run)
    combined = search.get("joint", "aligned") == "cross"
    return not combined and search.get("strategy", "beam") != "beam"


def _search(run: Run) -> Mapping[str, Any]:
    found: Mapping[str, Any] = run.config.get("search", {})
    return found


def trajectory_rewards(
    records: Iterable[EpisodeRecord], by: Measure = REWARD
) -> dict[str, list[float]]:
    """Per problem, the rewards of all its trajectories over repeated episodes: the task's scores,
    without the judge. `by`: another measure of them."""
    found: dict[str, list[float]] = {}
    for record in records:
        rewards = found.setdefault(record.problem, [])
        rewards += [by.of(leaf.score) for leaf in record.trajectories()]
    return found


def _best_at(rewards: Sequence[Sequence[float]]) -> dict[int, Interval]:
    return _for_each_k([[expected_best(k, row) for row in rewards] for k in KS])


def _pass_at(records: Iterable[EpisodeRecord], solved: str | None) -> dict[int, Interval]:
    if solved is None:
        return {}
    counts: dict[str, tuple[int, int]] = {}
    for record in records:
        n, c = counts.get(record.problem, (0, 0))
        drawn = len(record.trajectories())
        counts[record.problem] = n + drawn, c + record.tags()[solved]
    return _for_each_k([[pass_at(k, n, c) for n, c in counts.values()] for k in KS])


def _for_each_k(figures: Sequence[Sequence[float | None]]) -> dict[int, Interval]:
    """Intervals for each k for which every problem has enough trajectories."""
    whole = {k: [f for f in row if f is not None] for k, row in zip(KS, figures, strict=True)}
    return {
        k: interval(kept)
        for (k, kept), row in zip(whole.items(), figures, strict=True)
        if len(kept) == len(row)
    }


def _answers(events: Sequence[Event]) -> list[Answered]:
    """A model's answers, whenever it gave them."""
    drawn = ("provider", "weights", "cache")
    return [one for one in events if isinstance(one, Answered) and one.source in drawn]


def _speed(events: Sequence[Event]) -> float | None:
    """Per wall time of all processes that ended in order, from opening to stopping."""
    tokens, seconds, opened, fresh = 0, 0.0, None, 0
    for event in events:
        if isinstance(event, Opened):
            opened, fresh = event.at, 0
        elif isinstance(event, Answered) and event.source in ("provider", "weights"):
            fresh += event.completion.output_tokens
        elif isinstance(event, Stopped) and opened is not None:
            tokens, seconds, opened = tokens + fresh, seconds + event.at - opened, None
    return tokens / seconds if tokens and seconds > 0 else None
