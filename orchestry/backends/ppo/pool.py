"""Self-play: earlier versions of a policy, as opponents of the one that learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestry.backends.ppo.checkpoint import act_alone
from orchestry.backends.ppo.policy import Team
from orchestry.core.ppo import PpoConfig
from orchestry.core.seeds import derive


class Pool:
    """A `Script` of the last `pool` versions of one shared policy. Each game's version is drawn
    evenly when the game begins (Bansal et al., arXiv 1710.03748, section 3.2)."""

    def __init__(self, settings: PpoConfig, games: int, seed: int) -> None:
        self._most, self._every = settings.pool, settings.pool_every
        self._versions = list[Team]()
        self._joined = 0
        """Steps of the learner when the newest version joined."""
        self._which_B = np.zeros(games, np.int64)
        self._random = torch.Generator().manual_seed(derive(seed, "pool"))

    def grow(self, steps: int, team: Team) -> None:
        """Takes in a team as it is after so many steps, if it is time."""
        if self._versions and steps - self._joined < self._every:
            return
        self._joined = steps
        self._versions.append(team.copy())
        if len(self._versions) > self._most:
            del self._versions[0]
            np.maximum(self._which_B - 1, 0, out=self._which_B)

    def act(self, observations: NDArray[np.float32], begun: NDArray[np.bool_]) -> NDArray[np.int8]:
        """See `Script`."""
        new = np.flatnonzero(begun)
        drawn = torch.randint(len(self._versions), (len(new),), generator=self._random)
        self._which_B[new] = drawn.numpy()
        choices = len(self._versions[0].choices)
        actions = np.empty((*observations.shape[:2], choices), np.int8)
        for version in np.unique(self._which_B):
            games = np.flatnonzero(self._which_B == version)
            actions[games] = act_alone(self._versions[version], observations[games], self._random)
        return actions

    def state(self) -> Mapping[str, Any]:
        """See `Script`."""
        return {
            "versions": [team.state() for team in self._versions],
            "joined": self._joined,
            "which": torch.from_numpy(self._which_B.copy()),
            "random": self._random.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """See `Script`; it has grown once."""
        like = self._versions[0]
        self._versions = [like.copy() for _ in state["versions"]]
        for team, own in zip(self._versions, state["versions"], strict=True):
            team.restore(own)
        self._joined = state["joined"]
        self._which_B = state["which"].numpy().copy()
        self._random.set_state(state["random"])
