"""Scripted agents that see what neural policies see: in games as arrays, and in seats of games by
text. They need no compiled rules."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import phase, two_phases
from .experts import EXPERTS, Seat
from .game import Action, Ring
from .scenario import Scenario


class Scripted:
    """A scripted agent in some seats of many games; see orchestry's `Script`. In two phases it
    decides in the first, announces the signal that it will send, and then does what it decided."""

    def __init__(
        self, scenario: Scenario, name: str, seats: tuple[int, ...], games: int, seed: int
    ) -> None:
        self._scenario, self._expert, self._seats = scenario, EXPERTS[name], seats
        self._source = random.Random(f"{seed}:{name}")
        self._places = [self._begun() for _ in range(games)]
        self._decided = np.zeros((games, len(seats), 3), np.int8)

    def act(self, observations: NDArray[np.float32], begun: NDArray[np.bool_]) -> NDArray[np.int8]:
        """Each expert is asked as in a game by text, once a night: (B, S, 3)."""
        for game in np.flatnonzero(self._asked(observations)):
            if begun[game]:
                self._places[game] = self._begun()
            ring = _ring(self._scenario, observations[game, 0])
            for place, seat in enumerate(self._places[game]):
                self._decided[game, place] = self._expert(seat, ring)
        return self._decided.copy()

    def _asked(self, observations: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Games whose night begins, (B,)."""
        asked = np.ones(len(observations), np.bool_)
        if two_phases(self._scenario):
            asked = observations[:, 0, phase(self._scenario)] == 1
        return asked

    def state(self) -> Mapping[str, Any]:
        """Of the random numbers, and what each seat remembers."""
        version, numbers, gauss = self._source.getstate()
        seats = [seat for places in self._places for seat in places]
        return {
            "random": [version, list(numbers), gauss],
            "last": [None if seat.last is None else list(seat.last) for seat in seats],
            "burnt": [None if seat.burnt is None else dict(seat.burnt) for seat in seats],
            "decided": self._decided.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`."""
        version, numbers, gauss = state["random"]
        self._source.setstate((version, tuple(numbers), gauss))
        seats = (seat for places in self._places for seat in places)
        for seat, last, burnt in zip(seats, state["last"], state["burnt"], strict=True):
            seat.last = None if last is None else (last[0], last[1])
            seat.burnt = burnt
        self._decided[...] = state["decided"]

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
