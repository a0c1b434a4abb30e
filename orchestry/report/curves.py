"""Rewards and kinds of trajectories over a run, for figures and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from orchestry.core.types import Part
from orchestry.report.measures import searched
from orchestry.store.journal import Evaluated
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run

Axis = Literal["updates", "episodes"]
Figure = Callable[[EpisodeRecord], float]
NORMAL = 1.96
"""Half-width of a normal 95 % interval, in standard errors."""
_FEWEST = 3
"""Minimum number of episodes for a spread."""
_MOST = 50


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a run's curve: `x` updates or episodes, and the reward there."""

    x: int
    episodes: tuple[EpisodeRecord, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve over an arm's runs; every sequence has the shape (X,).

    `low` and `high` are the lowest and the highest seed; for a single run, the mean -/+ 1.96
    standard errors over a point's episodes, within [0, 1].
    """

    x: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    seeds: tuple[tuple[float, ...], ...]
    """Each run's own curve."""


def axis(run: Run) -> Axis:
    """The x axis: updates if weights are trained, else episodes."""
    return "updates" if _every(run) else "episodes"


def episode_reward(run: Run) -> Figure:
    """What a run is chosen by: of a search the best of k, else the reward."""
    if searched(run):
        return lambda record: record.reward
    return lambda record: record.mean_leaf_reward


def reward_name(run: Run) -> str:
    """The word for it."""
    return "best of k" if searched(run) else "reward"


def part(name: str) -> Callable[[Run], Figure]:
    """One part of that reward; 0 if a trajectory lacks it."""

    def figure(run: Run) -> Figure:
        if searched(run):
            return lambda record: _value(record.best_node.score.parts, name)
        return lambda record: fmean(
            _value(leaf.score.parts, name) for leaf in record.trajectories()
        )

    return figure


def dev_rewards(run: Run) -> dict[int, float]:
    """The team's reward on dev problems, by number of updates."""
    found = {event.update: event.reward for event in run.events if isinstance(event, Evaluated)}
    return dict(sorted(found.items()))


def part_names(runs: Sequence[Run]) -> list[str]:
    """The reward's parts, in the task's order."""
    records = (record for run in runs for record in run.episodes)
    return list(
        dict.fromkeys(one.name for record in records for one in record.best_node.score.parts)
    )


def window(runs: Sequence[Run]) -> int:
    """The window of smoothing, in points: a twentieth of the shortest run for updates, a quarter
    for episodes (they differ by problem); from 1 to 50."""
    if not runs:
        return 1
    fewest = min(len(list(_plain(run))) for run in runs)
    return max(1, min(_MOST, fewest // (20 if axis(runs[0]) == "updates" else 4)))


def points(run: Run, smooth: int) -> Iterator[Point]:
    """A run's points, each with the episodes of the last `smooth` points, from the first full
    window on."""
    plain = list(_plain(run))
    for end in range(smooth, len(plain) + 1):
        last = plain[end - smooth : end]
        yield Point(last[-1].x, tuple(record for point in last for record in point.episodes))


def curve(runs: Sequence[Run], figure: Callable[[Run], Figure], smooth: int) -> Curve | None:
    """The mean over runs, up to the shortest; None if a run has no point."""
    rows = [
        [(p.x, list(map(figure(run), p.episodes))) for p in points(run, smooth)] for run in runs
    ]
    columns = list(zip(*rows, strict=False))
    if not columns:
        return None
    seeds = tuple(tuple(fmean(values) for _, values in row[: len(columns)]) for row in rows)
    spans = [_span([values for _, values in column]) for column in columns]
    return Curve(
        x=tuple(column[0][0] for column in columns),
        mean=tuple(fmean(at) for at in zip(*seeds, strict=True)),
        low=tuple(low for low, _ in spans),
        high=tuple(high for _, high in spans),
        seeds=seeds,
    )


def _span(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The ends of the band at one point, from each run's figures there."""
    means = [fmean(row) for row in values]
    if len(means) > 1:
        return min(means), max(means)
    (row,), (mean,) = values, means
    half = NORMAL * stdev(row) / len(row) ** 0.5 if len(row) >= _FEWEST else 0.0
    return max(0.0, mean - half), min(1.0, mean + half)


def _plain(run: Run) -> Iterator[Point]:
    """Points without smoothing. The episodes of an update were drawn before it, so x = 0 is the
    untrained team."""
    every = _every(run)
    if not every:
        for number, record in enumerate(run.episodes, start=1):
            yield Point(number, (record,))
        return
    blocks: dict[int, list[EpisodeRecord]] = {}
    for record in run.episodes:
        blocks.setdefault(record.episode // every, []).append(record)
    for number, block in sorted(blocks.items()):
        yield Point(number, tuple(block))


def _every(run: Run) -> int:
    """Episodes of an update of the weights; 0 if they stay."""
    learn = run.config.get("learn", {})
    moves = run.config.get("backend") == "local" and learn.get("enabled", True)
    return int(learn.get("every", 8)) if moves else 0


def _value(parts: Sequence[Part], name: str) -> float:
    return next((part.value for part in parts if part.name == name), 0.0)


SCHEME = "scheme_"
NONE = "no tag"
UNNAMED = "without a scheme tag"
OTHER = "other"
_MOST_KINDS = 6
"""Number of kinds shown; rarer ones are `other`."""
QUARTER = 4


@dataclass(frozen=True, slots=True)
class Portion:
    """How many of how many trajectories."""

    count: int
    of: int

    @property
    def share(self) -> float:
        """In [0, 1]; 0 of none is 0."""
        return self.count / self.of if self.of else 0.0

    def __str__(self) -> str:
        return f"{100 * self.share:.0f} % ({self.count} of {self.of})" if self.of else "-"


def kind_of(tags: Sequence[str], *, schemes: bool) -> str:
    """The kind of a trajectory with these tags.

    >>> kind_of(("solved", "scheme_pipeline"), schemes=True), kind_of((), schemes=False)
    ('pipeline', 'no tag')
    """
    if schemes:
        named = [tag.removeprefix(SCHEME) for tag in tags if tag.startswith(SCHEME)]
        return " + ".join(sorted(named)) or UNNAMED
    return " + ".join(sorted(tags)) or NONE


def has_schemes(runs: Iterable[Run]) -> bool:
    """Whether a task names cooperation schemes."""
    tags = (tag for run in runs for record in run.episodes for tag in record.tags())
    return any(tag.startswith(SCHEME) for tag in tags)


def common_kinds(runs: Sequence[Run]) -> list[str]:
    """The kinds that a report shows, most frequent first; trajectories without a kind last."""
    schemes = has_schemes(runs)
    counts: Counter[str] = Counter()
    for run in runs:
        counts += count(run.episodes, schemes=schemes)
    nothing = UNNAMED if schemes else NONE
    named = sorted((kind for kind in counts if kind != nothing), key=lambda k: (-counts[k], k))
    rest = [OTHER] if len(named) > _MOST_KINDS else []
    return [*named[:_MOST_KINDS], *rest, *([nothing] if counts[nothing] else [])]


def count(records: Iterable[EpisodeRecord], *, schemes: bool) -> Counter[str]:
    """Evaluated trajectories by kind."""
    leaves = (leaf for record in records for leaf in record.trajectories())
    return Counter(kind_of(leaf.score.tags, schemes=schemes) for leaf in leaves)


def shares(
    records: Sequence[EpisodeRecord], kinds: Sequence[str], *, schemes: bool
) -> dict[str, Portion]:
    """Every kind's share of these episodes' trajectories; kinds not listed are `other`."""
    counts = count(records, schemes=schemes)
    whole = sum(counts.values())
    listed = {kind: counts[kind] for kind in kinds if kind != OTHER}
    if OTHER in kinds:
        listed[OTHER] = whole - sum(listed.values())
    return {kind: Portion(listed[kind], whole) for kind in kinds}


def tag_shares(records: Sequence[EpisodeRecord], tags: Sequence[str]) -> dict[str, Portion]:
    """Every tag's share; a trajectory may carry several."""
    counts: Counter[str] = sum((record.tags() for record in records), Counter())
    whole = sum(len(record.trajectories()) for record in records)
    return {tag: Portion(counts[tag], whole) for tag in tags}


def tag_names(runs: Iterable[Run]) -> list[str]:
    """All tags, in alphabetical order."""
    return sorted({tag for run in runs for record in run.episodes for tag in record.tags()})


def first_and_last(records: Sequence[EpisodeRecord]) -> tuple[list[EpisodeRecord], ...]:
    """The first and the last quarter of the episodes; at least one episode each."""
    size = max(1, len(records) // QUARTER)
    return list(records[:size]), list(records[-size:])
