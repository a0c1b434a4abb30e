"""Pairs of teams on dev, and moves of the search: what a race learns its gains from.

Who plays a pair, on which side, what it costs, and what the samples of a search showed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Protocol

from orchestry.backends.api.race import FIRST, Entrant, Race
from orchestry.backends.gold import Move
from orchestry.backends.library import Behavior, Library
from orchestry.core.seeds import derive
from orchestry.core.types import Problem, Turn
from orchestry.store.records import EpisodeRecord

BATCH = 2
"""Pairs that are drawn together; the race looks after each batch."""
AHEAD = 8
"""Batches in flight at once: 32 plays. Who plays in a batch depends on all batches up to the eighth
before it, whatever arrives first. Twice as many fill the call slots better, but a race knows that
much less of those who have no chance: candidates that do harm cost half as much again."""
TOGETHER = 4
"""Rules of one agent that race at once: half of them stand in a prompt, on average."""


@dataclass(frozen=True, slots=True)
class Played:
    """One dev episode: its value in [0, 1], and the turns that led there.

    None if one of its calls failed, so it can't be compared.
    """

    value: float | None
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Pairs of teams that are being played."""

    entrants: Sequence[Entrant]
    moving: Collection[str]
    """Their agents."""
    problems: Sequence[str]
    sides: Sequence[Mapping[str, int]]
    """By pair and behaviour, the team that has it: see `coins`."""
    plays: asyncio.Task[list[Played]]
    """Of each pair its first team, then its second."""
    calls: float
    """That they take, as far as known beforehand."""
    draw: int
    """The first one's number."""


class Arena(Protocol):
    """Compares libraries."""

    async def play(
        self, library: Library, problem: Problem, seed: int, still: Collection[str]
    ) -> Played:
        """Plays one episode, without search, with that library.

        Agents who are `still` draw the same samples in every play of the problem: what they say
        before the others move is asked and paid once.
        """
        ...

    async def gold(self, seed: int, count: int) -> Sequence[Move]:
        """The agents' moves in the gold of so many train problems, drawn by the seed."""
        ...


def coins(seed: int, behaviors: Sequence[str]) -> dict[str, int]:
    """By behaviour the team that has it in a pair, 1 or -1: fair and independent."""
    return {id: random.Random(derive(seed, "side", id)).choice((1, -1)) for id in behaviors}


def together_now(
    race: Race,
    library: Library,
    left: float,
    most: int,
    flying: Mapping[str, int] = MappingProxyType({}),
) -> list[Entrant]:
    """Who plays the next pairs: the retest, and of each agent TOGETHER rules, one prompt and one
    example, likely winners first.

    Where an agent has `most` behaviours already, one alone: two would push out only one other, and
    each would seem to cost half of it. Rules of less than FIRST pairs come before all others, since
    most have a place anyway. New examples and prompts don't: they would use up the pairs with which
    an earlier one could win. A pair in flight lowers their chance, since its result is unknown.
    """

    def rank(one: Entrant) -> tuple[bool, float, str]:
        waiting, chance = flying.get(one.behavior, 0), one.chance(left, race.pool)
        if behavior_of(library, one.behavior).kind == "rule":
            return len(one.gains) + waiting >= FIRST, -chance, one.behavior
        return True, -chance / (1.0 + waiting / (FIRST + len(one.gains))), one.behavior

    ranked = sorted(race.candidates, key=rank)
    chosen, counts = [one for one in race.entrants if one.kind == "retest"], Counter[str]()
    for one in ranked:
        behavior = behavior_of(library, one.behavior)
        full = len(library.added(behavior.agent)) >= most
        place = behavior.agent if full else f"{behavior.kind} {behavior.agent}"
        if counts[place] < (TOGETHER if behavior.kind == "rule" and not full else 1):
            counts[place] += 1
            chosen.append(one)
    return chosen


def cost(
    problems: Sequence[str],
    pairs: Sequence[Sequence[Played]],
    moving: Collection[str],
    known: frozenset[int],
) -> tuple[int, float, frozenset[int]]:
    """Calls and dollars of pairs of plays on these problems, and what is known after them.

    Up to the first agent whose prompt differs, the two of a pair ask the same, and share the
    answer: it is counted once, as it is paid once. What is said before one of the `moving` agents
    is the same in every play of the problem, and paid once in a run.
    """
    paid, after = dict[int, tuple[int, float]](), set(known)
    for number, (problem, pair) in enumerate(zip(problems, pairs, strict=True)):
        for played in pair:
            shared = True
            for place, turn in enumerate(played.turns):
                shared = shared and turn.agent not in moving
                said = turn.model_dump_json(include={"agent", "messages"})
                at = f"dev {problem}" if shared else f"pair {number}"
                key = derive(place, at, said)
                if key not in known:
                    paid[key] = len(turn.completion.answers), turn.completion.usd
                if shared:
                    after.add(key)
    calls, usd = sum(one for one, _ in paid.values()), sum(one for _, one in paid.values())
    return calls, usd, frozenset(after)


def tried_gains(record: EpisodeRecord) -> dict[str, float]:
    """What the samples with each behaviour on trial earned more than those without it, in [-1, 1]:
    the mean over the states in which both are there, and over all other states together.

    It is one number per episode: gains of one problem go together, and a bettor who bets on the
    second after the first has paid would win by that alone.
    """
    ends = {leaf.id: leaf.score.total for leaf in record.leaves()}
    rest, found = dict[str, _Arms](), list[tuple[str, _Arms]]()
    for group in record.groups:
        for trial in group.trials if ends.keys() >= set(group.children) else ():
            values = [ends[child] for child in group.children]
            own = _Arms([], [])
            own.add(values, trial.drawn)
            if own.both:
                found.append((trial.behavior, own))
            else:
                rest.setdefault(trial.behavior, _Arms([], [])).add(values, trial.drawn)
    found += [(behavior, arms) for behavior, arms in rest.items() if arms.both]
    gains = dict[str, list[float]]()
    for behavior, arms in found:
        gains.setdefault(behavior, []).append(fmean(arms.given) - fmean(arms.without))
    return {behavior: fmean(each) for behavior, each in gains.items()}


@dataclass(frozen=True, slots=True)
class _Arms:
    """Rewards of samples with a behaviour, and without it."""

    given: list[float]
    without: list[float]

    @property
    def both(self) -> bool:
        return bool(self.given and self.without)

    def add(self, values: Sequence[float], drawn: Sequence[bool]) -> None:
        for value, tried in zip(values, drawn, strict=True):
            (self.given if tried else self.without).append(value)


def behavior_of(library: Library, id: str) -> Behavior:
    found = library.find(id)
    assert found is not None, f"the state names a behaviour that its library lacks: {id}"
    return found
