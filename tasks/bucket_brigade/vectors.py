"""The game as arrays, for backend ppo: `kernel.py` behind orchestry's `Vectors`, and the scripted
agents as its opponents."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernel
from .experts import EXPERTS, Seat
from .game import Action, Ring
from .scenario import Scenario


class Games:
    """B games that are on; see orchestry's `Vectors`."""

    def __init__(self, scenario: Scenario, max_nights: int, games: int, seed: int) -> None:
        self.choices: tuple[int, ...] = (scenario.num_houses, 2, 2)
        self._rules = kernel.rules(scenario, max_nights)
        self._on, self._seen = kernel.opened(scenario, games, seed)
        kernel.begin(self._rules, self._on, self._seen, kernel.NO_LUCK)
        self.observations, self.final = self._seen.observations, self._seen.final
        self.rewards, self.ended, self.cut = self._seen.rewards, self._seen.ended, self._seen.cut

    def step(self, actions: NDArray[np.int8]) -> None:
        """A night of every game, or its first phase."""
        kernel.step(self._rules, self._on, self._seen, actions, kernel.NO_LUCK, kernel.NO_LUCK)

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Copies of all arrays."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from a `state`."""
        for name, array in self._arrays().items():
            array[...] = state[name]

    def _arrays(self) -> dict[str, NDArray[Any]]:
        on, seen = self._on._asdict(), self._seen._asdict()
        return {**on, **seen}


class Scripted:
    """A scripted agent in some seats of many games; see orchestry's `Script`."""

    def __init__(
        self, scenario: Scenario, name: str, seats: tuple[int, ...], games: int, seed: int
    ) -> None:
        self._scenario, self._expert, self._seats = scenario, EXPERTS[name], seats
        self._source = random.Random(f"{seed}:{name}")
        self._places = [self._begun() for _ in range(games)]

    def act(self, observations: NDArray[np.float32], begun: NDArray[np.bool_]) -> NDArray[np.int8]:
        """Each expert is asked as in a game by text: (B, S, 3)."""
        found = np.empty((*observations.shape[:2], 3), np.int8)
        for game in range(len(begun)):
            if begun[game]:
                self._places[game] = self._begun()
            ring = _ring(self._scenario, observations[game, 0])
            for place, seat in enumerate(self._places[game]):
                found[game, place] = self._expert(seat, ring)
        return found

    def state(self) -> Mapping[str, Any]:
        """Of the random numbers, and what each seat remembers."""
        version, numbers, gauss = self._source.getstate()
        seats = [seat for places in self._places for seat in places]
        return {
            "random": [version, list(numbers), gauss],
            "last": [None if seat.last is None else list(seat.last) for seat in seats],
            "burnt": [None if seat.burnt is None else dict(seat.burnt) for seat in seats],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`."""
        version, numbers, gauss = state["random"]
        self._source.setstate((version, tuple(numbers), gauss))
        seats = (seat for places in self._places for seat in places)
        for seat, last, burnt in zip(seats, state["last"], state["burnt"], strict=True):
            seat.last = None if last is None else (last[0], last[1])
            seat.burnt = burnt

    def _begun(self) -> list[Seat]:
        return [Seat(self._scenario, seat, self._source) for seat in self._seats]


def _ring(scenario: Scenario, seen: NDArray[np.float32]) -> Ring:
    """What an observation tells of the ring: all that experts look at."""
    houses, agents = scenario.num_houses, scenario.num_agents
    numbers = [int(number) for number in seen[: houses + 4 * agents]]
    signals = numbers[houses : houses + agents]
    did = numbers[houses + 2 * agents :]
    last = tuple(
        Action(did[2 * agent], did[2 * agent + 1], signals[agent]) for agent in range(agents)
    )
    return Ring(tuple(numbers[:houses]), last, (0,) * agents, (0.0,) * houses)
