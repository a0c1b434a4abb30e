"""What trajectories came to, figure by figure: the reward, its parts, cooperation, and the problems
solved; early and late in a run, and by problem. Which schemes of cooperation were seen.

Cooperation is the share of trajectories with the tag `cooperates`, or, without such a tag, with a
part `cooperation` above 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from orchestry.report.curves import (
    SCHEME,
    Portion,
    first_and_last,
    part_names,
    tag_names,
    tag_shares,
)
from orchestry.report.measures import searched
from orchestry.report.runs import Salvaged
from orchestry.report.stats import Interval, apart, difference, interval
from orchestry.store.records import EpisodeRecord, NodeRecord

COOPERATES, COOPERATION = "cooperates", "cooperation"
_NO_SCHEME = f"{SCHEME}none"
NOVEL = "novel_"
"""How the tags of ways of working together begin that are none of the task's schemes."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a trajectory, whose mean over trajectories is shown."""

    name: str
    of: Callable[[NodeRecord], float]
    share: bool
    """Whether it is 0 or 1, so that its mean is a share of the trajectories."""
    best: bool = False
    """Whether an episode or a problem counts by its best trajectory instead of the mean; so for the
    reward of a search."""

    def words(self, value: float) -> str:
        """Its mean as text."""
        return f"{100 * value:.0f} %" if self.share else f"{value:.3f}"

    def over(self, leaves: Iterable[NodeRecord]) -> float:
        """That of an episode or a problem; there is at least one leaf."""
        return (max if self.best else fmean)(map(self.of, leaves))


def cooperates(leaf: NodeRecord) -> bool:
    """Whether the agents worked together on a trajectory."""
    return COOPERATES in leaf.score.tags or part_of(leaf, COOPERATION) > 0


def part_of(leaf: NodeRecord, name: str) -> float:
    """One part of a trajectory's reward; 0 if it lacks it."""
    return next((part.value for part in leaf.score.parts if part.name == name), 0.0)


def rates(runs: Sequence[Salvaged]) -> list[Figure]:
    """Cooperation and the problems solved, as far as the runs' task has them."""
    found = []
    if _tells_cooperation(runs) or any(map(known_schemes, runs)):
        found.append(Figure("cooperation rate", lambda leaf: float(cooperates(leaf)), share=True))
    if tag := next(filter(None, map(solved_tag, runs)), None):
        found.append(Figure("pass rate", lambda leaf: float(tag in leaf.score.tags), share=True))
    return found


def _tells_cooperation(runs: Sequence[Salvaged]) -> bool:
    return COOPERATES in tag_names(runs) or COOPERATION in part_names(runs)


def figures(runs: Sequence[Salvaged]) -> list[Figure]:
    """The reward, its parts if there are several, and the rates."""
    names, best = part_names(runs), all(map(searched, runs))
    reward = "best of k" if best else "reward"
    parts = [
        Figure(f"part {name}", partial(part_of, name=name), share=False)
        for name in (names if len(names) > 1 else ())
    ]
    return [
        Figure(reward, lambda leaf: leaf.score.total, share=False, best=best),
        *parts,
        *rates(runs),
    ]


def solved_tag(run: Salvaged) -> str | None:
    """The tag of a solved problem; None if its task has none, or the run never came to an end."""
    return run.summary.solved or (run.written.solved if run.written else None)


def by_problem(records: Iterable[EpisodeRecord], figure: Figure) -> dict[str, float]:
    """A figure by problem, over all its trajectories."""
    found: dict[str, list[NodeRecord]] = {}
    for record in records:
        found.setdefault(record.problem, []).extend(record.trajectories())
    return {problem: figure.over(leaves) for problem, leaves in found.items()}


def over_problems(run: Salvaged, figure: Figure) -> Interval:
    """Its mean with an interval over problems; raises ValueError without an episode."""
    return interval([*by_problem(run.episodes, figure).values()])


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after, and the difference with its 95 % interval."""

    figure: Figure
    first: float
    last: float
    difference: Interval
    counts: tuple[int, ...]
    """How many episodes stand on each side; or of how many problems the pairs are."""

    def __str__(self) -> str:
        words, gap = self.figure.words, self.difference
        return (
            f"{self.figure.name} {words(self.first)} to {words(self.last)} ({gap.mean:+.3f} "
            f"[{gap.low:+.3f}, {gap.high:+.3f}])"
        )


def over_time(run: Salvaged, figure: Figure) -> Change | None:
    """From the first quarter of a run's episodes to the last, whose problems may differ; the
    interval resamples the episodes of each. None with fewer than two episodes."""
    if len(run.episodes) < 2:
        return None
    first, last = (
        [figure.over(record.trajectories()) for record in records]
        for records in first_and_last(run.episodes)
    )
    gap = apart(first, last)
    return Change(figure, fmean(first), fmean(last), gap, (len(first), len(last)))


def between(before: Salvaged, after: Salvaged, figure: Figure) -> Change | None:
    """From one team to another, paired over the problems that both played; None without any."""
    sides = [by_problem(run.episodes, figure) for run in (before, after)]
    gap = difference(sides[1], sides[0])
    if gap is None:
        return None
    both = sides[0].keys() & sides[1].keys()
    first, last = (fmean(side[name] for name in sorted(both)) for side in sides)
    return Change(figure, first, last, gap, (len(both),))


def schemes(run: Salvaged, records: Sequence[EpisodeRecord] | None = None) -> dict[str, Portion]:
    """The schemes of cooperation that were seen, by name, the most frequent first: in how many of a
    run's trajectories, or those of `records`. A trajectory whose agents do not cooperate shows
    none, where the task tells whether they do."""
    leaves = [leaf for record in records or run.episodes for leaf in record.trajectories()]
    told = _tells_cooperation([run])
    shown = [leaf for leaf in leaves if cooperates(leaf) or not told]
    counts = Counter(
        tag
        for leaf in shown
        for tag in leaf.score.tags
        if tag.startswith(SCHEME)
        if tag != _NO_SCHEME
    )
    found = sorted(counts, key=lambda tag: (-counts[tag], tag))
    return {tag.removeprefix(SCHEME): Portion(counts[tag], len(leaves)) for tag in found}


def known_schemes(run: Salvaged) -> tuple[str, ...]:
    """Those that its task knows; () if it has none, or the run never came to an end."""
    return run.summary.schemes or (run.written.schemes if run.written else ())


def schemes_said(run: Salvaged) -> str:
    """Which schemes were seen, and of how many that the task knows; '' if it has none."""
    known, found = known_schemes(run), schemes(run)
    if not found and not known and _NO_SCHEME not in tag_names([run]):
        return ""
    of = f" of {len(known)}" if known else ""
    each = ", ".join(f"{name} {portion.count}" for name, portion in found.items())
    return f"{len(found)}{of}{f' ({each})' if each else ''}"


def novel(run: Salvaged, records: Sequence[EpisodeRecord] | None = None) -> dict[str, Portion]:
    """Ways of working together that are none of the task's schemes, the most frequent first: in
    these episodes, else in all."""
    tags = [tag for tag in tag_names([run]) if tag.startswith(NOVEL)]
    found = tag_shares(run.episodes if records is None else records, tags)
    return {tag: found[tag] for tag in sorted(tags, key=lambda tag: (-found[tag].count, tag))}


def credits(run: Salvaged) -> dict[str, tuple[Interval, int]]:
    """By agent, its mean credit for the episodes' best trajectories, and in how many episodes."""
    found: dict[str, list[float]] = {}
    for record in run.episodes:
        for credit in record.credits:
            if credit.leaf == record.best:
                found.setdefault(credit.agent, []).append(credit.credit)
    return {agent: (interval(values), len(values)) for agent, values in found.items()}
