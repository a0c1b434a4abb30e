"""Backend ppo's learner in the PPO benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from benchmarks.peers.ppo_work import AGENTS, Work, compete
from orchestry.backends.ppo.checkpoint import Policy
from orchestry.backends.ppo.learner import Learner, Seats
from orchestry.core.ppo import PpoConfig
from orchestry.task.vector import Script


def learn(work: Work) -> tuple[Callable[[], int], Callable[[], Script]]:
    """See `compete`."""
    torch.set_num_threads(1)
    own = {key: value for key, value in asdict(work).items() if key not in ("scenario", "seed")}
    settings = PpoConfig(**own)
    games = work.vectors(work.games, "games")
    learner = Learner(games, settings, Seats(tuple(range(AGENTS))), work.seed)

    def steps() -> int:
        while learner.steps < work.steps:
            learner.iterate(work.steps)
        return learner.steps

    def policy() -> Script:
        roles = [f"agent_{number}" for number in range(AGENTS)]
        state = {**learner.state(), "roles": roles}
        return Policy.of(settings, state, games.observations.shape[-1], games.choices, roles)

    return steps, policy


if __name__ == "__main__":
    compete(learn)
