"""Scripted agents: upstream's archetypes and the experts of its scenarios.

An expert sees what any agent sees, remembers what it chooses to, and draws from a source of random
numbers that is given to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .game import BURNING, REST, SAFE, WORK, Action, Ring
from .scenario import Scenario


@dataclass(slots=True)
class Seat:
    """An agent's place in one game."""

    scenario: Scenario
    agent: int
    source: random.Random
    last: tuple[int, int] | None = None
    """House and mode that an archetype chose last."""
    burnt: Mapping[int, int] | None = None
    """Nights that each fire has burned, as seen by an expert that counts them."""

    @property
    def home(self) -> int:
        """Where scripted agents see themselves: house i, around the ring."""
        return self.agent % self.scenario.num_houses

    def near(self, house: int) -> tuple[int, int]:
        """Both neighbours of a house."""
        n = self.scenario.num_houses
        return (house - 1) % n, (house + 1) % n


Expert = Callable[[Seat, Ring], Action]


@dataclass(frozen=True, slots=True)
class Traits:
    """An archetype: ten numbers from 0 to 1, as upstream's HeuristicAgent has them."""

    honesty: float
    work: float
    help_neighbors: float
    own_house: float
    risk: float
    follow: float
    explore: float
    repeat: float
    rest: float
    altruism: float

    def act(self, seat: Seat, ring: Ring) -> Action:
        """A signal by intent and honesty, a house by its score, a mode by the signal."""
        draw = seat.source.random
        intent = self._intent(seat, ring)
        truth = intent > 0.5
        signal = int(truth == (draw() < self.honesty))
        house = self._house(seat, ring)
        mode = int(draw() < (self.honesty if signal else intent * self.altruism))
        if draw() < self.explore:
            house, mode = seat.source.randrange(len(ring.houses)), seat.source.randrange(2)
        if seat.last is not None and draw() < self.repeat:
            house, mode = seat.last
        seat.last = house, mode
        return Action(house, mode, signal)

    def _intent(self, seat: Seat, ring: Ring) -> float:
        intent = self.work + self.risk * ring.houses.count(BURNING) / len(ring.houses)
        if ring.houses[seat.home] == BURNING:
            intent += self.own_house * 0.5
        return min(1.0, max(0.0, intent * (1.0 - self.rest)))

    def _house(self, seat: Seat, ring: Ring) -> int:
        scores = [max(0.01, self._score(seat, ring, house)) for house in range(len(ring.houses))]
        return seat.source.choices(range(len(scores)), scores)[0]

    def _score(self, seat: Seat, ring: Ring, house: int) -> float:
        apart = abs(house - seat.home)
        score = 0.1 / (1 + min(apart, len(ring.houses) - apart))
        score += self.own_house * (house == seat.home)
        score += 0.5 * (ring.houses[house] == BURNING)
        fires = sum(ring.houses[near] == BURNING for near in seat.near(house))
        score += 0.3 * self.help_neighbors * (fires > 0)
        score += 0.1 * self.follow * sum(act.house == house for act in ring.last)
        return score - 0.2 * self.risk * fires


ARCHETYPES = {
    "firefighter": Traits(1.0, 0.9, 0.5, 0.8, 0.5, 0.7, 0.1, 0.0, 0.0, 0.8),
    "free_rider": Traits(0.7, 0.2, 0.0, 0.9, 0.0, 0.0, 0.1, 0.0, 0.9, 0.0),
    "hero": Traits(1.0, 1.0, 1.0, 0.5, 0.1, 0.5, 0.0, 0.9, 0.0, 1.0),
    "coordinator": Traits(0.9, 0.6, 0.7, 0.6, 0.8, 1.0, 0.05, 0.0, 0.2, 0.6),
    "liar": Traits(0.1, 0.7, 0.0, 0.9, 0.2, 0.8, 0.3, 0.0, 0.4, 0.2),
}


def _fires(ring: Ring) -> list[int]:
    return [house for house, state in enumerate(ring.houses) if state == BURNING]


def _work(house: int) -> Action:
    return Action(house, WORK, WORK)


def _rest(seat: Seat) -> Action:
    return Action(seat.home, REST, REST)


def random_play(seat: Seat, ring: Ring) -> Action:
    """Every action equally likely."""
    pick = seat.source.randrange
    return Action(pick(len(ring.houses)), pick(2), pick(2))


def always_work(seat: Seat, ring: Ring) -> Action:
    """Works at home whatever happens."""
    return _work(seat.home)


def always_rest(seat: Seat, ring: Ring) -> Action:
    """Never works."""
    return _rest(seat)


def guard(seat: Seat, ring: Ring) -> Action:
    """A specialist: works where an own house burns, else rests."""
    own = [house for house in seat.scenario.owned(seat.agent) if ring.houses[house] == BURNING]
    return _work(own[0]) if own else _rest(seat)


def trivial_cooperator(seat: Seat, ring: Ring) -> Action:
    """Works at the first fire; at home where nothing burns."""
    return _work((*_fires(ring), seat.home)[0])


def sparse_hero(seat: Seat, ring: Ring) -> Action:
    """Works at home if it burns, else at the first fire; rests where nothing burns."""
    fires = _fires(ring)
    if not fires:
        return _rest(seat)
    return _work(seat.home if seat.home in fires else fires[0])


def greedy_neighbor(seat: Seat, ring: Ring) -> Action:
    """Works at home if it burns, else next door if it burns there; else rests."""
    for house in (seat.home, *seat.near(seat.home)):
        if ring.houses[house] == BURNING:
            return _work(house)
    return _rest(seat)


def early_containment(seat: Seat, ring: Ring) -> Action:
    """Works at the fire with the most burning neighbours; rests where nothing burns."""
    fires = _fires(ring)
    if not fires:
        return _rest(seat)
    return _work(max(fires, key=lambda house: sum(near in fires for near in seat.near(house))))


def chain_reaction(seat: Seat, ring: Ring) -> Action:
    """Works in the row of fires that is longest and has most to spread to."""
    rows = _rows(_fires(ring), len(ring.houses))
    if not rows:
        return _rest(seat)

    def weight(row: list[int]) -> int:
        around = [near for house in row for near in seat.near(house)]
        return len(row) + sum(ring.houses[near] == SAFE for near in around)

    heaviest = max(rows, key=weight)
    return _work(min(heaviest))


def honest_signaler(seat: Seat, ring: Ring) -> Action:
    """Works at a fire that is new to it, else at the first; rests where nothing burns."""
    fires, known = _fires(ring), seat.burnt
    seat.burnt = dict.fromkeys(fires, 1)
    if not fires:
        return _rest(seat)
    new = [] if known is None else [house for house in fires if house not in known]
    return _work((new or fires)[0])


def rest_trap(seat: Seat, ring: Ring) -> Action:
    """Rests, until a fire has burned for more than two nights: then it works at the oldest.

    So it never works where fires burn out on their night."""
    fires, known = _fires(ring), seat.burnt or {}
    old = [house for house in known if house in fires]
    new = [house for house in fires if house not in known]
    seat.burnt = {house: known.get(house, 0) + 1 for house in (*old, *new)}
    lasting = [house for house, nights in seat.burnt.items() if nights > 2]
    return _work(lasting[0]) if lasting else _rest(seat)


def _rows(fires: Sequence[int], houses: int) -> list[list[int]]:
    """Fires that stand side by side, around the ring."""
    rows: list[list[int]] = []
    for house in fires:
        if rows and rows[-1][-1] == house - 1:
            rows[-1].append(house)
        else:
            rows.append([house])
    if len(rows) > 1 and rows[0][0] == 0 and rows[-1][-1] == houses - 1:
        rows[0] = rows.pop() + rows[0]
    return rows


EXPERTS: Mapping[str, Expert] = {
    "random": random_play,
    "always_work": always_work,
    "always_rest": always_rest,
    "guard": guard,
    **{name: traits.act for name, traits in ARCHETYPES.items()},
    "trivial_cooperator": trivial_cooperator,
    "sparse_hero": sparse_hero,
    "greedy_neighbor": greedy_neighbor,
    "early_containment": early_containment,
    "chain_reaction": chain_reaction,
    "honest_signaler": honest_signaler,
    "rest_trap": rest_trap,
}
UPSTREAMS: Mapping[str, str] = {
    "trivial_cooperation": "trivial_cooperator",
    "early_containment": "early_containment",
    "greedy_neighbor": "greedy_neighbor",
    "sparse_heroics": "sparse_hero",
    "rest_trap": "rest_trap",
    "chain_reaction": "chain_reaction",
    "deceptive_calm": "honest_signaler",
}
"""Which expert upstream wrote for a scenario."""
