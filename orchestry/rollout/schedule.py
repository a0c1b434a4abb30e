"""Schedules: how many samples each stage draws, and which states survive. Pure, seeded.

A rollout works with any schedule: the beam, or independent chains. Best of n, the baseline that a
search has to beat, gets at least as many calls as the beam can spend on the same problem (rounded
up).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from orchestry.core.config import SearchConfig
from orchestry.core.types import NodeId, Problem
from orchestry.task.base import BaseTask
from orchestry.task.guard import count_stages

Joint = Literal["aligned", "cross"]
"""Pair the agents' j-th samples, or combine all of them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A state that may survive: its id and its value in [0, 1]."""

    id: NodeId
    value: float


class Schedule(Protocol):
    """How a rollout spends its calls."""

    @property
    def collapse(self) -> bool:
        """Whether siblings in equal states are one node."""
        ...

    @property
    def joint(self) -> Joint:
        """How samples of simultaneous agents combine."""
        ...

    @property
    def breadth(self) -> int:
        """Most samples for each acting agent in one stage."""
        ...

    def samples(self, stage: int, pool: int) -> int:
        """Samples for each acting agent in each of `pool` states."""
        ...

    def prune(self, pool: Sequence[Candidate], seed: int) -> list[NodeId]:
        """Ids that live on, best first."""
        ...


@dataclass(frozen=True, slots=True)
class Beam:
    """Keep the best `width` states of a stage, and never draw more than k x width samples in one.

    If all siblings tie (a review leaves the code unchanged), the whole pool survives, and the next
    stage spreads the same k x width samples over it. So no paid sample is dropped at random, a
    stage costs the same, and tied siblings get their values from the leaves below them.
    """

    k: int
    width: int
    exploration: float = 0.0
    joint: Joint = "aligned"
    collapse: bool = True

    @property
    def breadth(self) -> int:
        return self.k * self.width

    def samples(self, stage: int, pool: int) -> int:
        return min(self.k, max(1, self.breadth // pool))

    def prune(self, pool: Sequence[Candidate], seed: int) -> list[NodeId]:
        width = self.breadth if _all_tied(pool) else self.width
        return prune(pool, width, seed, self.exploration)


@dataclass(frozen=True, slots=True)
class Chains:
    """`n` independent root-to-leaf trajectories, nothing pruned and nothing shared."""

    n: int
    joint: Joint = "aligned"
    collapse: bool = False

    @property
    def breadth(self) -> int:
        return self.n

    def samples(self, stage: int, pool: int) -> int:
        return self.n if stage == 0 else 1

    def prune(self, pool: Sequence[Candidate], seed: int) -> list[NodeId]:
        return [candidate.id for candidate in pool]


@dataclass(frozen=True, slots=True)
class Branching:
    """`k` samples in every state of the first `stages` stages, nothing pruned, so that all samples
    of a state have siblings. Plays that last longer go on with one sample."""

    k: int
    stages: int
    joint: Joint = "aligned"
    collapse: bool = False

    @property
    def breadth(self) -> int:
        return int(self.k**self.stages)

    @property
    def nodes(self) -> int:
        """States that are reached from the first one."""
        return sum(self.k**stage for stage in range(1, self.stages + 1))

    def samples(self, stage: int, pool: int) -> int:
        return self.k if stage < self.stages else 1

    def prune(self, pool: Sequence[Candidate], seed: int) -> list[NodeId]:
        return [candidate.id for candidate in pool]


def branching(task: BaseTask[Any], problem: Problem, k: int) -> Branching:
    """The tree of a problem with k samples in every state."""
    return Branching(k, count_stages(task, problem))


def schedule(search: SearchConfig, task: BaseTask[Any], problem: Problem) -> Schedule:
    """The schedule that `search.strategy` names, sized for this task."""
    beam = Beam(search.k_samples, search.beam_width, search.exploration, search.joint)
    if search.strategy == "single":
        return Chains(n=1)
    if search.strategy == "chains":
        return Chains(search.k_samples, search.joint)
    if search.strategy == "best_of_n":
        return best_of_n(beam, task, problem)
    return beam


def best_of_n(beam: Beam, task: BaseTask[Any], problem: Problem) -> Chains:
    """As many chains as the beam's calls on this problem allow."""
    stages = count_stages(task, problem)
    return Chains(n=-(-beam_stage_calls(beam, stages) // stages))


def beam_stage_calls(beam: Beam, stages: int) -> int:
    """Most samples for each acting agent that the beam draws over `stages` stages."""
    return beam.k + (stages - 1) * beam.k * beam.width


def prune(
    pool: Sequence[Candidate], width: int, seed: int, exploration: float = 0.0
) -> list[NodeId]:
    """The `width` best candidates, best first.

    Ties go to parents with the fewest survivors so far, then by seed. With probability
    `exploration` a slot goes to a random remaining candidate.
    """
    rng = random.Random(seed)
    coin = {candidate.id: rng.random() for candidate in pool}
    kept_of: Counter[NodeId | None] = Counter()
    left, kept = list(pool), list[NodeId]()
    while left and len(kept) < width:
        if exploration and rng.random() < exploration:
            chosen = rng.choice(left)
        else:
            chosen = max(left, key=lambda c: (c.value, -kept_of[c.id.parent], coin[c.id]))
        left.remove(chosen)
        kept_of[chosen.id.parent] += 1
        kept.append(chosen.id)
    return kept


def _all_tied(pool: Iterable[Candidate]) -> bool:
    """Whether all siblings of this stage tie (or, without siblings, all states)."""
    values: defaultdict[NodeId | None, list[float]] = defaultdict(list)
    for candidate in pool:
        values[candidate.id.parent].append(candidate.value)
    families = [family for family in values.values() if len(family) > 1]
    if not families:
        families = [[value for family in values.values() for value in family]]
    return all(len(set(family)) == 1 for family in families)
