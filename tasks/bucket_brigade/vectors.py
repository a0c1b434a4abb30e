"""The game as arrays, for backend ppo: `kernel.py` behind orchestry's `Vectors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from . import kernel
from .arrays import phase
from .scenario import Scenario


def _in_range(actions: NDArray[np.int8], limits: NDArray[np.int64]) -> bool:
    fits = True
    for game in range(actions.shape[0]):
        for agent in range(actions.shape[1]):
            for place in range(limits.shape[0]):
                action = actions[game, agent, place]
                fits &= 0 <= action < limits[place]
    return fits


_possible: Any = numba.njit(cache=True)(_in_range)
"""Whether every choice is one; compiled, since it is asked in every step."""


class Games:
    """B games that are on; see orchestry's `Vectors`."""

    def __init__(self, scenario: Scenario, max_nights: int, games: int, seed: int) -> None:
        self.choices: tuple[int, ...] = (scenario.num_houses, 2, 2)
        self._limits = np.array(self.choices)
        self._rules = kernel.rules(scenario, max_nights)
        self._on, self._seen = kernel.opened(scenario, games, seed)
        kernel.begin(self._rules, self._on, self._seen, kernel.NO_LUCK)
        self.observations, self.final = self._seen.observations, self._seen.final
        self.rewards, self.ended, self.cut = self._seen.rewards, self._seen.ended, self._seen.cut
        self._phase = phase(scenario)
        if self._rules.two_phases:
            self.observations[..., self._phase] = self.final[..., self._phase] = 1

    def step(self, actions: NDArray[np.int8]) -> None:
        """A night of every game, or its first phase, where an action's signal is announced. Raises
        ValueError for an action that is none, and for an array of another shape: the compiled
        rules would read and write beside their arrays.
        """
        wanted = (*self.observations.shape[:2], len(self.choices))
        if actions.shape != wanted or actions.dtype.kind not in "iu":
            raise ValueError(
                f"found actions of shape {actions.shape} and type {actions.dtype}, expected whole "
                f"numbers of shape (games, agents, choices) = {wanted}"
            )
        if not _possible(actions, self._limits):
            raise ValueError(f"actions are from 0 to below {self.choices}: found {actions}")
        kernel.step(self._rules, self._on, self._seen, actions, kernel.NO_LUCK, kernel.NO_LUCK)
        if self._rules.two_phases:
            self.observations[..., self._phase] = self._on.announcing[:, None]

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
