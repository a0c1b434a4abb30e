"""One night of Bucket Brigade. Pure: the random numbers are arguments.

The order is upstream's: signals and moves, extinguishing, burn-out, spread, ignition, rewards, end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .scenario import Scenario

SAFE, BURNING, RUINED = range(3)
REST, WORK = range(2)
DRAWS = 4
"""Random numbers per house and night: of extinguishing, of spread to the left and to the right, of
ignition."""
OUT = 1.0 - 1e-6
"""Ten times a tenth puts a fire out, however it is rounded."""


class Action(NamedTuple):
    """What an agent does on a night. The signal is seen by all, and may be a lie."""

    house: int
    mode: int = REST
    signal: int = REST


@dataclass(frozen=True, slots=True)
class Ring:
    """All that the next night depends on, besides actions and luck."""

    houses: tuple[int, ...]
    """SAFE, BURNING or RUINED."""
    last: tuple[Action, ...]
    """Of last night; before the first, all rested at house 0."""
    promised: tuple[int, ...]
    """Signals of the first phase, where there are two; else REST."""
    progress: tuple[float, ...]
    """How far each fire is put out, where that takes nights."""
    night: int = 0
    done: bool = False


def draws(seed: str, night: int, houses: int) -> tuple[float, ...]:
    """Uniform in [0, 1), DRAWS per house, in the order of DRAWS' description; night -1 is before
    the game. Equal for all actions, so that siblings have the same luck."""
    source = random.Random(f"{seed}:{night}")
    return tuple(source.random() for _ in range(DRAWS * houses))


def begin(scenario: Scenario, luck: Sequence[float]) -> Ring:
    """The first evening: some houses burn."""
    n = scenario.num_houses
    lit = [u < scenario.prob_house_catches_fire for u in luck[3 * n : 4 * n]]
    return Ring(
        houses=tuple(BURNING if fire else SAFE for fire in lit),
        last=(Action(0),) * scenario.num_agents,
        promised=(REST,) * scenario.num_agents,
        progress=(0.0,) * n,
    )


def play(
    scenario: Scenario, ring: Ring, actions: Sequence[Action], luck: Sequence[float]
) -> tuple[Ring, tuple[float, ...]]:
    """The next evening, and each agent's reward of the night."""
    moves = tuple(_reachable(scenario, agent, act) for agent, act in enumerate(actions))
    n = scenario.num_houses
    houses, progress = [*ring.houses], [*ring.progress]
    workers = [sum(act[:2] == (house, WORK) for act in moves) for house in range(n)]
    if scenario.extinguish_mode == "bernoulli":
        _put_out(scenario, houses, workers, luck[:n])
    else:
        _suppress(scenario, houses, progress, workers)
        _spread(scenario, houses, luck[n : 3 * n])
    for house, u in enumerate(luck[3 * n : 4 * n]):
        if houses[house] == SAFE and u < scenario.prob_house_catches_fire:
            houses[house], progress[house] = BURNING, 0.0
    after = replace(ring, houses=tuple(houses), last=moves, progress=tuple(progress))
    done = ring.night >= scenario.min_nights and BURNING not in houses
    return replace(after, night=ring.night + 1, done=done), rewards(scenario, ring, after)


def rewards(scenario: Scenario, before: Ring, after: Ring) -> tuple[float, ...]:
    """Of each agent: rest or the cost of work, what happened to its houses and to others', and the
    team's share."""
    n = scenario.num_houses
    saved = [
        was != SAFE and now == SAFE for was, now in zip(before.houses, after.houses, strict=True)
    ]
    ruined = [now == RUINED for now in after.houses]
    safe = after.houses.count(SAFE) / n * scenario.team_reward_house_survives
    team = safe - sum(ruined) / n * scenario.team_penalty_house_burns
    found = []
    for agent, act in enumerate(after.last):
        own = scenario.owned(agent)
        own_saved, own_ruined = (sum(flags[house] for house in own) for flags in (saved, ruined))
        reward = scenario.reward_rest
        if act.mode == WORK:
            far = scenario.distance_cost_alpha * scenario.distance(agent, act.house)
            reward = -(scenario.cost_to_work_one_night + far)
        reward += scenario.reward_own_house_survives * own_saved
        reward += scenario.reward_other_house_survives * (sum(saved) - own_saved)
        reward -= scenario.penalty_own_house_burns * own_ruined
        reward -= scenario.penalty_other_house_burns * (sum(ruined) - own_ruined)
        found.append(reward + team)
    return tuple(found)


def _reachable(scenario: Scenario, agent: int, act: Action) -> Action:
    """The action, at home if its house is out of reach."""
    if scenario.action_validity_mode == "adjacent_only" and scenario.distance(agent, act.house) > 1:
        return act._replace(house=scenario.homes[agent])
    return act


def _put_out(
    scenario: Scenario, houses: list[int], workers: Sequence[int], luck: Sequence[float]
) -> None:
    """A fire goes out by the chance that at least one worker succeeds; else the house is lost."""
    fails = 1.0 - scenario.prob_solo_agent_extinguishes_fire
    for house, state in enumerate(houses):
        if state == BURNING:
            houses[house] = SAFE if luck[house] < 1.0 - fails ** workers[house] else RUINED


def _suppress(
    scenario: Scenario, houses: list[int], progress: list[float], workers: Sequence[int]
) -> None:
    """Work adds up; a fire is out when it comes to 1."""
    for house, state in enumerate(houses):
        if state == BURNING and workers[house]:
            progress[house] += workers[house] * scenario.suppression_per_worker
            if progress[house] >= OUT:
                houses[house], progress[house] = SAFE, 0.0


def _spread(scenario: Scenario, houses: list[int], luck: Sequence[float]) -> None:
    """Fires light their neighbours, house by house: what has just caught fire goes on spreading
    where its turn is still to come."""
    for house in range(len(houses)):
        for side, offset in enumerate((-1, 1)):
            near = (house + offset) % len(houses)
            lit = luck[2 * house + side] < scenario.prob_fire_spreads_to_neighbor
            if houses[house] == BURNING and houses[near] == SAFE and lit:
                houses[near] = BURNING
