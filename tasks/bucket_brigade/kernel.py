"""Many games of Bucket Brigade at once, compiled by numba: a step, rewards, observations, and new
games where one has ended.

Equal to `game.play` bit for bit, given the same random numbers; tests play both. Arrays: B games,
N agents, H houses, D floats of an observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from .arrays import FACTS, facts, width
from .game import BURNING, DRAWS, OUT, RUINED, SAFE, WORK
from .scenario import Scenario

F = TypeVar("F", bound=Callable[..., Any])
Floats = NDArray[np.float64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORKERS, _WAS, _SAVED, _RUINED = range(4)
"""Rows of counts in a night: workers and state before by house, own houses by agent."""
NO_LUCK: Floats = np.empty((0, 0))
"""In place of given random numbers: the kernel draws its own."""


def compiled(function: F) -> F:
    """To machine code, kept on disk beside this file."""
    done: Any = numba.njit(cache=True, error_model="numpy")(function)
    return cast(F, done)


def inlined(function: F) -> F:
    """The same, put in where it is called: to hand all arrays over takes longer than a night."""
    done: Any = numba.njit(inline="always", error_model="numpy")(function)
    return cast(F, done)


class Rules(NamedTuple):
    """A scenario, as the kernel takes it."""

    ignites: float
    spreads: float
    puts_out: Floats
    """By the number of workers, (N + 1,)."""
    suppresses: float
    """By one worker; below 0: fires do not last, and are put out by chance."""
    distance: NDArray[np.int64]
    """Of each house from each agent's home, (N, H)."""
    homes: NDArray[np.int64]
    """(N,)"""
    near_only: bool
    two_phases: bool
    min_nights: int
    max_nights: int
    team_safe: float
    team_ruined: float
    own_saved: float
    other_saved: float
    own_ruined: float
    other_ruined: float
    work: float
    far: float
    rest: float


class Games(NamedTuple):
    """B games that are on. All is changed in place."""

    houses: NDArray[np.int8]
    """(B, H)"""
    progress: Floats
    """(B, H)"""
    acts: NDArray[np.int8]
    """Last night's house, mode and signal, (B, N, 3)."""
    promised: NDArray[np.int8]
    """(B, N)"""
    night: NDArray[np.int64]
    """(B,)"""
    announcing: NDArray[np.bool_]
    """(B,)"""
    source: NDArray[np.uint64]
    """State of each game's random numbers, (B,)."""


class Seen(NamedTuple):
    """What a step leaves. All is written in place."""

    observations: NDArray[np.float32]
    """(B, N, D)"""
    rewards: Floats
    """(B, N)"""
    ended: NDArray[np.bool_]
    """By the rules, (B,); observations are then the next game's, and `final` has the last ones."""
    cut: NDArray[np.bool_]
    """By `max_nights`, (B,)."""
    final: NDArray[np.float32]
    """(B, N, D); of games that did not just end, what an earlier one left."""


def rules(scenario: Scenario, max_nights: int) -> Rules:
    """The scenario as arrays."""
    agents = range(scenario.num_agents)
    fails = 1.0 - scenario.prob_solo_agent_extinguishes_fire
    lasting = scenario.extinguish_mode == "continuous"
    houses = range(scenario.num_houses)
    return Rules(
        ignites=scenario.prob_house_catches_fire,
        spreads=scenario.prob_fire_spreads_to_neighbor,
        puts_out=np.array([1.0 - fails**workers for workers in range(scenario.num_agents + 1)]),
        suppresses=scenario.suppression_per_worker if lasting else -1.0,
        distance=np.array([[scenario.distance(a, h) for h in houses] for a in agents]),
        homes=np.array(scenario.homes),
        near_only=scenario.action_validity_mode == "adjacent_only",
        two_phases=scenario.commitment_mode == "two_phase",
        min_nights=scenario.min_nights,
        max_nights=max_nights,
        team_safe=scenario.team_reward_house_survives,
        team_ruined=scenario.team_penalty_house_burns,
        own_saved=scenario.reward_own_house_survives,
        other_saved=scenario.reward_other_house_survives,
        own_ruined=scenario.penalty_own_house_burns,
        other_ruined=scenario.penalty_other_house_burns,
        work=scenario.cost_to_work_one_night,
        far=scenario.distance_cost_alpha,
        rest=scenario.reward_rest,
    )


def opened(scenario: Scenario, games: int, seed: int) -> tuple[Games, Seen]:
    """Games and what is seen of them, not yet begun: `begin` follows."""
    b, n, h, d = games, scenario.num_agents, scenario.num_houses, width(scenario)
    on = Games(
        houses=np.zeros((b, h), np.int8),
        progress=np.zeros((b, h)),
        acts=np.zeros((b, n, 3), np.int8),
        promised=np.zeros((b, n), np.int8),
        night=np.zeros(b, np.int64),
        announcing=np.zeros(b, np.bool_),
        source=np.random.SeedSequence(seed).generate_state(b, np.uint64).astype(np.uint64),
    )
    observations = np.zeros((b, n, d), np.float32)
    observations[:, :, -n:] = np.eye(n, dtype=np.float32)
    observations[:, :, h + 4 * n : h + 4 * n + FACTS] = facts(scenario)
    flags = np.zeros(b, np.bool_), np.zeros(b, np.bool_)
    return on, Seen(observations, np.zeros((b, n)), *flags, observations.copy())


@compiled
def begin(given: Rules, on: Games, seen: Seen, luck: Floats) -> None:
    """All games anew. `luck`: (B, DRAWS H), or NO_LUCK."""
    for game in range(len(on.night)):
        _begin(given, on, game, luck)
        _observe(given, on, game, seen.observations)


def step(given: Rules, on: Games, seen: Seen, actions: Any, luck: Floats, again: Floats) -> None:
    """A night of all games, or its first phase; ended games begin anew.

    `actions`: house, mode and signal, (B, N, 3); in a first phase the signal is announced. `luck`
    and `again`, (B, DRAWS H) or NO_LUCK: random numbers of the night, and of games that begin.
    """
    played = _step_lasting if given.suppresses >= 0.0 else _step_brief
    played(given, on, seen, actions, luck, again)


@inlined
def _draw(on: Games, game: int, luck: Floats, slot: int) -> Any:
    """The given number, or the game's own for this slot of the night (splitmix64; Steele, Lea and
    Flood, 2014). Slots are those of `game.draws`."""
    if luck.size:
        number = luck[game, slot]
    else:
        mixed = on.source[game] + np.uint64(slot + 1) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        number = np.float64(mixed >> np.uint64(11)) * (1.0 / 9007199254740992.0)
    return number


@inlined
def _drawn(on: Games, game: int) -> None:
    """A night's random numbers are used up."""
    on.source[game] += np.uint64(DRAWS * on.houses.shape[1]) * _GOLDEN


@inlined
def _begin(given: Rules, on: Games, game: int, luck: Floats) -> None:
    size = on.houses.shape[1]
    for house in range(size):
        lit = _draw(on, game, luck, 3 * size + house) < given.ignites
        on.houses[game, house] = BURNING if lit else SAFE
        on.progress[game, house] = 0.0
    _drawn(on, game)
    on.acts[game] = 0
    on.promised[game] = 0
    on.night[game] = 0
    on.announcing[game] = given.two_phases


@inlined
def _night(
    given: Rules,
    on: Games,
    game: int,
    actions: Any,
    luck: Floats,
    seen: Seen,
    counts: Any,
    lasting: bool,
) -> None:
    """One night, in the order of `game.play`. `counts`: room for four counts per house or agent."""
    agents, size = on.promised.shape[1], on.houses.shape[1]
    for house in range(size):
        counts[_WORKERS, house] = 0
    for agent in range(agents):
        counts[_SAVED, agent] = counts[_RUINED, agent] = 0
    for agent in range(agents):
        house = actions[game, agent, 0]
        if given.near_only and given.distance[agent, house] > 1:
            house = given.homes[agent]
        on.acts[game, agent, 0] = house
        on.acts[game, agent, 1] = actions[game, agent, 1]
        on.acts[game, agent, 2] = actions[game, agent, 2]
        counts[_WORKERS, house] += actions[game, agent, 1]
    if lasting:
        _suppress(given, on, game, counts, luck)
    safe = saved = ruined = burning = owner = 0
    for house in range(size):
        now = on.houses[game, house]
        was = counts[_WAS, house] if lasting else now
        if now == BURNING and not lasting:
            out = _draw(on, game, luck, house) < given.puts_out[counts[_WORKERS, house]]
            now = SAFE if out else RUINED
        if now == SAFE and _draw(on, game, luck, 3 * size + house) < given.ignites:
            now = BURNING
            on.progress[game, house] = 0.0
        on.houses[game, house] = now
        safe += now == SAFE
        burning += now == BURNING
        ruined += now == RUINED
        counts[_RUINED, owner] += now == RUINED
        if now == SAFE and was != SAFE:
            saved += 1
            counts[_SAVED, owner] += 1
        owner = owner + 1 if owner + 1 < agents else 0
    _drawn(on, game)
    team = safe / size * given.team_safe - ruined / size * given.team_ruined
    _pay(given, on, game, seen, counts, saved, ruined, team)
    seen.ended[game] = on.night[game] >= given.min_nights and burning == 0
    on.night[game] += 1
    seen.cut[game] = not seen.ended[game] and on.night[game] >= given.max_nights
    on.announcing[game] = given.two_phases


@inlined
def _pay(
    given: Rules,
    on: Games,
    game: int,
    seen: Seen,
    counts: Any,
    saved: int,
    ruined: int,
    team: float,
) -> None:
    """Each agent's reward, as in `game.rewards`."""
    for agent in range(on.promised.shape[1]):
        reward = given.rest
        if on.acts[game, agent, 1] == WORK:
            far = given.far * given.distance[agent, on.acts[game, agent, 0]]
            reward = -(given.work + far)
        reward += given.own_saved * counts[_SAVED, agent]
        reward += given.other_saved * (saved - counts[_SAVED, agent])
        reward -= given.own_ruined * counts[_RUINED, agent]
        reward -= given.other_ruined * (ruined - counts[_RUINED, agent])
        seen.rewards[game, agent] = reward + team


@inlined
def _suppress(given: Rules, on: Games, game: int, counts: Any, luck: Floats) -> None:
    """Work adds up; then fires light their neighbours. Keeps what the houses were before."""
    size = on.houses.shape[1]
    for house in range(size):
        counts[_WAS, house] = on.houses[game, house]
        if on.houses[game, house] == BURNING and counts[_WORKERS, house]:
            on.progress[game, house] += counts[_WORKERS, house] * given.suppresses
            if on.progress[game, house] >= OUT:
                on.houses[game, house] = SAFE
                on.progress[game, house] = 0.0
    for house in range(size):
        for side in range(2):
            near = (house + 2 * side - 1) % size
            if on.houses[game, house] == BURNING and on.houses[game, near] == SAFE:
                lit = _draw(on, game, luck, size + 2 * house + side) < given.spreads
                if lit:
                    on.houses[game, near] = BURNING


@inlined
def _observe(given: Rules, on: Games, game: int, observations: Any) -> None:
    """The part that changes: the same for all agents."""
    agents, size = on.promised.shape[1], on.houses.shape[1]
    for house in range(size):
        observations[game, 0, house] = on.houses[game, house]
    for agent in range(agents):
        at = np.float32(on.acts[game, agent, 0])
        observations[game, 0, size + agent] = on.acts[game, agent, 2]
        observations[game, 0, size + agents + agent] = at
        observations[game, 0, size + 2 * agents + 2 * agent] = at
        observations[game, 0, size + 2 * agents + 2 * agent + 1] = on.acts[game, agent, 1]
        if given.two_phases:
            observations[game, 0, size + 4 * agents + FACTS + agent] = on.promised[game, agent]
    changing = size + 4 * agents + (FACTS + agents if given.two_phases else 0)
    for agent in range(1, agents):
        for place in range(changing):
            observations[game, agent, place] = observations[game, 0, place]


def _compiled_for(lasting: bool) -> Any:
    """A step where fires last, or where none does: code for both at once is a third slower."""

    @compiled
    def steps(
        given: Rules, on: Games, seen: Seen, actions: Any, luck: Floats, again: Floats
    ) -> None:
        counts = np.zeros((4, max(on.houses.shape[1], on.promised.shape[1])), np.int64)
        for game in range(len(on.night)):
            seen.ended[game] = seen.cut[game] = False
            if on.announcing[game]:
                on.announcing[game] = False
                on.promised[game] = actions[game, :, 2]
                seen.rewards[game] = 0.0
            else:
                _night(given, on, game, actions, luck, seen, counts, lasting)
                if seen.ended[game] or seen.cut[game]:
                    _observe(given, on, game, seen.final)
                    _begin(given, on, game, again)
            _observe(given, on, game, seen.observations)

    return steps


_step_lasting, _step_brief = _compiled_for(True), _compiled_for(False)
