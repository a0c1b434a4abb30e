"""How teams worked: the share of trajectories of each kind, and how it moved.

A task that names cooperation schemes does so in tags that begin with `scheme_`, one a trajectory;
for any other task a kind is the set of tags that a trajectory carries. So shares add up to one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run

SCHEME = "scheme_"
NONE = "no tag"
UNNAMED = "without a scheme tag"
OTHER = "other"
MOST = 6
"""Kinds that are told apart; the rarer ones are `other`."""
QUARTER = 4


@dataclass(frozen=True, slots=True)
class Share:
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
    """The one kind that a trajectory with these tags is of.

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


def common(runs: Sequence[Run]) -> list[str]:
    """The kinds that a report tells apart, the commonest first, and last what names nothing."""
    schemes = has_schemes(runs)
    counts: Counter[str] = Counter()
    for run in runs:
        counts += count(run.episodes, schemes=schemes)
    nothing = UNNAMED if schemes else NONE
    named = sorted((kind for kind in counts if kind != nothing), key=lambda k: (-counts[k], k))
    rest = [OTHER] if len(named) > MOST else []
    return [*named[:MOST], *rest, *([nothing] if counts[nothing] else [])]


def count(records: Iterable[EpisodeRecord], *, schemes: bool) -> Counter[str]:
    """Evaluated trajectories by kind."""
    leaves = (leaf for record in records for leaf in record.leaves())
    return Counter(kind_of(leaf.score.tags, schemes=schemes) for leaf in leaves)


def shares(
    records: Sequence[EpisodeRecord], kinds: Sequence[str], *, schemes: bool
) -> dict[str, Share]:
    """Every kind's share of these episodes' trajectories; kinds not listed are `other`."""
    counts = count(records, schemes=schemes)
    whole = sum(counts.values())
    listed = {kind: counts[kind] for kind in kinds if kind != OTHER}
    if OTHER in kinds:
        listed[OTHER] = whole - sum(listed.values())
    return {kind: Share(listed[kind], whole) for kind in kinds}


def tag_shares(records: Sequence[EpisodeRecord], tags: Sequence[str]) -> dict[str, Share]:
    """Every tag's share; a trajectory may carry several."""
    counts: Counter[str] = sum((record.tags() for record in records), Counter())
    whole = sum(len(list(record.leaves())) for record in records)
    return {tag: Share(counts[tag], whole) for tag in tags}


def tag_names(runs: Iterable[Run]) -> list[str]:
    """All tags, in order of the alphabet."""
    return sorted({tag for run in runs for record in run.episodes for tag in record.tags()})


def first_and_last(records: Sequence[EpisodeRecord]) -> tuple[list[EpisodeRecord], ...]:
    """The first quarter of the episodes, and the last one; one episode at least."""
    size = max(1, len(records) // QUARTER)
    return list(records[:size]), list(records[-size:])
