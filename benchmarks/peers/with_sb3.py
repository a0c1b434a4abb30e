"""stable-baselines3's PPO in the PPO benchmark, in an environment of its own.

Its own VecNormalize, MlpPolicy and PPO over our compiled games; each agent of each game is an
environment of its own, so one policy learns from all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from benchmarks.peers.ppo_work import AGENTS, Work, compete
from orchestry.task.vector import Script, Vectors


class Games(VecEnv):
    """Every agent of every game as an environment; the reward is the team's mean."""

    def __init__(self, games: Vectors) -> None:
        self.games = games
        count, agents, observed = games.observations.shape
        box = Box(-np.inf, np.inf, (observed,), np.float32)
        super().__init__(count * agents, box, MultiDiscrete(games.choices))

    def _rows(self, seen: Any) -> Any:
        return seen.reshape(self.num_envs, -1).copy()

    def reset(self) -> Any:
        return self._rows(self.games.observations)

    def step_async(self, actions: Any) -> None:
        self._actions = actions.reshape(*self.games.rewards.shape, -1).astype(np.int8)

    def step_wait(self) -> Any:
        games = self.games
        games.step(self._actions)
        team = np.repeat(games.rewards.mean(1), AGENTS).astype(np.float32)
        over = np.repeat(games.ended | games.cut, AGENTS)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        final, cut = self._rows(games.final), np.repeat(games.cut, AGENTS)
        for row in np.flatnonzero(over):
            infos[row]["terminal_observation"] = final[row]
            infos[row]["TimeLimit.truncated"] = bool(cut[row])
        return self._rows(games.observations), team, over, infos

    def close(self) -> None: ...

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

    def env_method(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Falling(BaseCallback):
    """Lowers learning rate and entropy weight as ours (`ppo.anneal`): by the steps taken before a
    batch. Its own schedule counts the batch in, and may end below 0; it has none for entropy."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def _on_rollout_start(self) -> None:
        left = max(0.0, 1 - self.model.num_timesteps / (self.work.steps * AGENTS))
        self.model.ent_coef = self.work.entropy * left
        self.model.lr_schedule = lambda _: self.work.learning_rate * left

    def _on_step(self) -> bool:
        return True


class Learned:
    """Its policy as a Script."""

    def __init__(self, model: PPO, norm: VecNormalize) -> None:
        self.model, self.norm = model, norm

    def act(self, observations: Any, begun: Any) -> Any:
        rows = self.norm.normalize_obs(observations.reshape(-1, observations.shape[-1]))
        actions, _ = self.model.predict(rows, deterministic=False)
        return actions.reshape(*observations.shape[:2], -1).astype(np.int8)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Any) -> None: ...


def learn(work: Work) -> tuple[Callable[[], int], Callable[[], Script]]:
    """See `compete`."""
    torch.set_num_threads(1)
    games = Games(work.vectors(work.games, "games"))
    norm = VecNormalize(games, gamma=work.discount, clip_reward=np.inf)
    model = PPO(
        "MlpPolicy",
        norm,
        learning_rate=work.learning_rate,
        n_steps=work.horizon,
        batch_size=work.minibatch,
        n_epochs=work.passes,
        gamma=work.discount,
        gae_lambda=work.trace,
        clip_range=work.clip,
        ent_coef=work.entropy,  # it falls, as the learning rate does
        vf_coef=0.25,  # ours is halved
        max_grad_norm=work.norm,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        seed=work.seed,
        device="cpu",
    )

    def steps() -> int:
        model.learn(work.steps * AGENTS, Falling(work))
        return int(model.num_timesteps) // AGENTS

    return steps, lambda: Learned(model, norm)


if __name__ == "__main__":
    compete(learn)
