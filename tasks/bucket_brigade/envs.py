"""The game for other people's learners: PettingZoo's Parallel interface and Gymnasium's vectors.

Both need the extra `envs`. Where a night has two phases, each is a step; in the first an action's
signal is announced, and nothing is paid.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from . import game, text
from .arrays import observation, two_phases, width
from .scenario import Scenario
from .task import BucketBrigade
from .vectors import Games

Array = NDArray[np.float32]


def _scenario(options: Mapping[str, Any]) -> tuple[Scenario, int]:
    """The scenario that a run's options name, and the most nights. Raises ConfigError for wrong
    options."""
    task = BucketBrigade(options=options)
    return task.scenario, task.options.max_nights


def _checked(actions: Any, choices: MultiDiscrete) -> NDArray[np.int8]:
    """The actions; raises ValueError for one that is none."""
    given = np.asarray(actions)
    if given.dtype.kind not in "iu" or (given < 0).any() or (given >= choices.nvec).any():
        raise ValueError(
            f"actions are whole numbers from 0 to below {choices.nvec[:3]}: found {given}"
        )
    return given.astype(np.int8)


def _spaces(given: Scenario, agents: int) -> tuple[Box, MultiDiscrete]:
    """Of so many agents together: what is seen, and house, mode and signal of each."""
    size = width(given)
    box = Box(-np.inf, np.inf, (agents * size,), np.float32)
    return box, MultiDiscrete([given.num_houses, 2, 2] * agents)


class ParallelGame(ParallelEnv[str, Array, NDArray[np.int64]]):  # type: ignore[misc]
    """One game, every agent with its own observation, action and reward.

    `options` are those of the task: `ParallelGame(scenario="rest_trap", agents=6)`.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "bucket_brigade", "render_modes": []}
    render_mode = None

    def __init__(self, **options: Any) -> None:
        self.scenario, self._most = _scenario(options)
        self.possible_agents = [text.role(agent) for agent in range(self.scenario.num_agents)]
        self.agents: list[str] = []
        self._box, self._choices = _spaces(self.scenario, 1)
        self._source = random.Random()

    def observation_space(self, agent: str) -> Box:
        """What one agent sees."""
        return self._box

    def action_space(self, agent: str) -> MultiDiscrete:
        """House, mode and signal."""
        return self._choices

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """A new game; without a seed, the next one."""
        if seed is not None:
            self._source = random.Random(seed)
        self._luck = str(self._source.getrandbits(64))
        self.agents = [*self.possible_agents]
        self._ring = game.begin(self.scenario, game.draws(self._luck, -1, self.scenario.num_houses))
        self._announcing = two_phases(self.scenario)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, NDArray[np.int64]]
    ) -> tuple[
        dict[str, Array],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """A night, or one of its phases. Raises ValueError for an action that is none, and
        ResetNeeded where no game is on."""
        if not self.agents:
            raise ResetNeeded("no game is on: call reset() first")
        acts = [
            game.Action(*map(int, _checked(actions[agent], self._choices))) for agent in self.agents
        ]
        rewards = self._announced(acts) if self._announcing else self._played(acts)
        cut = not self._ring.done and self._ring.night >= self._most
        here, seen = self.agents, self._seen()
        if self._ring.done or cut:
            self.agents = []
        return (
            seen,
            dict(zip(here, rewards, strict=True)),
            dict.fromkeys(here, self._ring.done),
            dict.fromkeys(here, cut),
            {agent: {} for agent in here},
        )

    def _announced(self, acts: list[game.Action]) -> tuple[float, ...]:
        self._announcing = False
        self._ring = replace(self._ring, promised=tuple(act.signal for act in acts))
        return (0.0,) * len(acts)

    def _played(self, acts: list[game.Action]) -> tuple[float, ...]:
        self._announcing = two_phases(self.scenario)
        luck = game.draws(self._luck, self._ring.night, self.scenario.num_houses)
        self._ring, rewards = game.play(self.scenario, self._ring, acts, luck)
        return rewards

    def _seen(self) -> dict[str, Array]:
        return {
            agent: observation(self.scenario, self._ring, number, self._announcing)
            for number, agent in enumerate(self.agents)
        }


class VectorGames(gymnasium.vector.VectorEnv[Array, NDArray[np.int64], NDArray[Any]]):
    """Many games at once for one learner that plays all agents, as upstream's `make_vec`: it sees
    all observations in a row and gets the sum of the rewards; `info["agent_rewards"]`, (games,
    agents), has them one by one. A game that ended begins anew in the same step (Gymnasium's
    SAME_STEP); `info["final_obs"]` has its last observations in its row, and `info["_final_obs"]`
    says which rows those are.
    """

    def __init__(self, num_envs: int, **options: Any) -> None:
        self.scenario, self._most = _scenario(options)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = num_envs
        agents = self.scenario.num_agents
        self.single_observation_space, self._choices = _spaces(self.scenario, agents)
        self.single_action_space = self._choices
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._next = np.random.SeedSequence()
        self._games: Games | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """New games; without a seed, the next ones. Raises ValueError for a seed per game: one seed
        is for all of them."""
        if seed is not None:
            if not isinstance(seed, int | np.integer):
                raise ValueError(f"one whole number is the seed of all games: found {seed}")
            self._next = np.random.SeedSequence(int(seed))
        (own,) = self._next.spawn(1)
        start = int(own.generate_state(1, np.uint64)[0])
        self._games = Games(self.scenario, self._most, self.num_envs, start)
        return self._flat(self._games.observations), {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Array, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """A night of every game, or one of its phases. Raises ValueError for an action that is
        none, and ResetNeeded before the first reset."""
        if (seen := self._games) is None:
            raise ResetNeeded("no game is on: call reset() first")
        given = _checked(actions, self._choices)
        seen.step(given.reshape(self.num_envs, self.scenario.num_agents, 3))
        over = seen.ended | seen.cut
        info: dict[str, Any] = {"agent_rewards": seen.rewards.copy()}
        if over.any():
            info |= {"final_obs": self._flat(seen.final), "_final_obs": over}
        rewards = seen.rewards.sum(1)
        return self._flat(seen.observations), rewards, seen.ended.copy(), seen.cut.copy(), info

    def _flat(self, seen: Array) -> Array:
        return seen.reshape(self.num_envs, -1).copy()
