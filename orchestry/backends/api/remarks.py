"""What a task said of bad work again and again, weighed by the reward that went with it.

Small models write no rule from a contrast, but the task's own feedback often names the fault. A
sentence that it says of several problems is about a habit, not about one answer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from orchestry.backends.api.contrasts import NO_RATINGS, Leaf, leaves_of
from orchestry.store.records import EpisodeRecord

FEWEST = 2
"""Problems of which a sentence is said."""
LEAST = 0.01
"""Reward, per trajectory of the block, that a sentence must have cost."""
_LENGTHS = range(12, 200)
"""Characters of a sentence."""
_SENTENCE = re.compile(r"[A-Z]\D*[.!?]")
"""Words, and no line of code: without a number, which is of one case."""
_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Remark:
    """One sentence of feedback."""

    text: str
    gap: float
    """The mean value of the trajectories without it minus that of those with it; where it is said
    of all, what they lack of the best value."""
    count: int
    """Trajectories of which it was said, of `among`."""
    among: int
    episodes: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def everywhere(self) -> bool:
        """Whether it is said of all, so that no trajectory shows what it costs."""
        return self.count == self.among

    @property
    def loss(self) -> float:
        """The gap, times the share of the trajectories of which it is said."""
        return self.gap * self.count / self.among

    @property
    def told(self) -> str:
        """What goes with it, in words."""
        if self.everywhere:
            return f"which earned {1 - self.gap:.2f}"
        return f"which earned {self.gap:.2f} less than the others"

    def concerns(self, agent: str, roles: Collection[str]) -> bool:
        """Whether it names the agent, or none of the team."""
        words = set(re.findall(r"\w+", self.text.lower()))
        named = [role for role in roles if role.lower() in words]
        return agent in named or not named


def remarks(
    records: Sequence[EpisodeRecord], ratings: Mapping[tuple[int, str], float] = NO_RATINGS
) -> list[Remark]:
    """The sentences that go with a loss, the most costly first; those that are said of all come
    last, since nothing shows that they are faults. One of a single problem is left out."""
    leaves = [leaf for record in records for leaf in leaves_of(record, ratings)]
    said = defaultdict[str, list[Leaf]](list)
    for leaf in leaves:
        for sentence in dict.fromkeys(_ENDS.split(leaf.node.score.feedback)):
            if len(sentence) in _LENGTHS and _SENTENCE.fullmatch(sentence):
                said[sentence].append(leaf)
    found = [_remark(text, mine, leaves) for text, mine in said.items()]
    dear = [one for one in found if len(one.problems) >= FEWEST and one.loss >= LEAST]
    return sorted(dear, key=lambda one: (one.everywhere, -one.loss, one.text))


def _remark(text: str, mine: Sequence[Leaf], leaves: Sequence[Leaf]) -> Remark:
    places = {leaf.place for leaf in mine}
    others = [leaf.value for leaf in leaves if leaf.place not in places]
    gap = (fmean(others) if others else 1.0) - fmean(leaf.value for leaf in mine)
    return Remark(
        text=text,
        gap=gap,
        count=len(mine),
        among=len(leaves),
        episodes=tuple(sorted({leaf.record.episode for leaf in mine})),
        problems=tuple(sorted({leaf.record.problem for leaf in mine})),
    )
