"""PPO over many games at once: play a batch, estimate advantages, learn from it in minibatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestry.backends.ppo.loss import Rows, Weights, advantages, gradient, joined
from orchestry.backends.ppo.net import backward, forward
from orchestry.backends.ppo.policy import Team
from orchestry.backends.ppo.running import RewardScale
from orchestry.core.ppo import PpoConfig
from orchestry.core.seeds import derive
from orchestry.task.vector import Script, Vectors

_EPSILON = 1e-5
"""Adam's (Huang et al., detail 3)."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Who plays where: the learning team, and others by rules of their own."""

    learning: tuple[int, ...]
    others: tuple[tuple[tuple[int, ...], Script], ...] = ()


@dataclass(slots=True)
class Played:
    """Games that ended in a batch."""

    returns: list[float]
    """The team's mean return of each."""
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class _Batch:
    """T steps of B games, as S learning seats saw them."""

    seen_TBSD: Tensor
    actions_TBSH: Tensor
    logprobs_TBS: Tensor
    rewards_TBS: Tensor
    ended_TB: Tensor
    over_TB: Tensor
    values_TBS: Tensor
    next_TBS: Tensor


class Learner:
    """A team that learns in games. Everything that its future depends on is in `state`."""

    def __init__(
        self,
        games: Vectors,
        settings: PpoConfig,
        seats: Seats,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.games, self.settings, self.seats = games, settings, seats
        self.device = torch.device(device)
        count, agents, observed = games.observations.shape
        self.team = Team(
            len(seats.learning),
            observed,
            games.choices,
            settings.hidden,
            shared=settings.policies == "shared",
            central=settings.critic == "central",
            normalise=settings.normalise,
            seed=derive(seed, "weights"),
            device=device,
        )
        shape = (count, len(seats.learning))
        self._scale = RewardScale(shape, settings.discount, self.device)
        self._grad_PW = torch.zeros_like(self.team.flat_PW)
        self._grads = self.team.views(self._grad_PW)
        self.team.flat_PW.grad = self._grad_PW
        self._adam = torch.optim.Adam(
            [self.team.flat_PW], settings.learning_rate, eps=_EPSILON, fused=True
        )
        self._random = torch.Generator(self.device).manual_seed(derive(seed, "actions"))
        self.steps = 0
        """Environment steps so far."""
        self._begun = np.ones(count, np.bool_)
        self._return_BN = np.zeros((count, agents))
        self._length_B = np.zeros(count, np.int64)

    @property
    def batch_steps(self) -> int:
        """Environment steps of a batch."""
        return self.settings.games * self.settings.horizon

    def iterate(self, whole: int | None = None) -> tuple[dict[str, float], Played]:
        """Plays a batch and learns from it. `whole`: the run's steps, over which the learning rate
        falls."""
        if self.settings.anneal and whole:
            left = max(0.0, 1 - self.steps / whole)
            self._adam.param_groups[0]["lr"] = self.settings.learning_rate * left
        with torch.no_grad():
            batch, played = self._play()
            figures = self._learn(batch)
        self.steps += self.batch_steps
        return figures, played

    def _play(self) -> tuple[_Batch, Played]:
        games, horizon = self.games, self.settings.horizon
        played, steps, cut = Played([], []), list[tuple[Tensor, ...]](), dict[int, Tensor]()
        for t in range(horizon):
            seen_BSD = self._seen(games.observations, learn=True)
            actions_BSH, logprobs_BS = self.team.act(seen_BSD, self._random)
            games.step(self._all_actions(actions_BSH))
            ended_B, over_B = games.ended.copy(), games.ended | games.cut
            rewards_BS = self._rewards(games.rewards)
            if games.cut.any():
                cut[t] = self.team.values(self._seen(games.final))
            self._count(over_B, played)
            flags = (torch.from_numpy(ended_B), torch.from_numpy(over_B))
            steps.append((seen_BSD, actions_BSH, logprobs_BS, rewards_BS, *flags))
        last_BS = self.team.values(self._seen(games.observations))
        columns = [torch.stack(column).to(self.device) for column in zip(*steps, strict=True)]
        seen_TBSD, actions_TBSH, logprobs_TBS, rewards_TBS, ended_TB, over_TB = columns
        values_TBS = self.team.values(seen_TBSD.flatten(0, 1)).view_as(logprobs_TBS)
        next_TBS = torch.cat((values_TBS[1:], last_BS[None]))
        for t, values_BS in cut.items():
            next_TBS[t][over_TB[t]] = values_BS[over_TB[t]]
        if self.settings.scale:
            rewards_TBS = self._scale.scaled(rewards_TBS, over_TB)
        batch = _Batch(
            seen_TBSD,
            actions_TBSH,
            logprobs_TBS,
            rewards_TBS,
            ended_TB,
            over_TB,
            values_TBS,
            next_TBS,
        )
        return batch, played

    def _seen(self, observations: NDArray[Any], learn: bool = False) -> Tensor:
        """The learning seats' observations, normalised."""
        own = observations[:, [*self.seats.learning]]  # a copy: the games write into theirs
        return self.team.normalised(torch.from_numpy(own).to(self.device), learn)

    def _all_actions(self, actions_BSH: Tensor) -> NDArray[Any]:
        own = actions_BSH.to(torch.int8).cpu().numpy()
        if not self.seats.others:
            return own
        games, agents, _ = self.games.observations.shape
        whole = np.empty((games, agents, own.shape[-1]), np.int8)
        whole[:, [*self.seats.learning]] = own
        for seats, script in self.seats.others:
            whole[:, [*seats]] = script.act(self.games.observations[:, [*seats]], self._begun)
        return whole

    def _rewards(self, rewards_BN: NDArray[Any]) -> Tensor:
        """What the learning seats learn from."""
        if self.settings.reward == "team":
            mean_B1 = rewards_BN.mean(1, keepdims=True)
            rewards_BN = np.repeat(mean_B1, rewards_BN.shape[1], 1)
        own = rewards_BN[:, [*self.seats.learning]]
        return torch.from_numpy(own.astype(np.float32)).to(self.device)

    def _count(self, over_B: NDArray[Any], played: Played) -> None:
        self._return_BN += self.games.rewards
        self._length_B += 1
        for game in np.flatnonzero(over_B):
            played.returns.append(float(self._return_BN[game].mean()))
            played.lengths.append(int(self._length_B[game]))
        self._return_BN[over_B] = 0.0
        self._length_B[over_B] = 0
        self._begun = over_B

    def _learn(self, batch: _Batch) -> dict[str, float]:
        settings = self.settings
        advantages_TBS = advantages(
            batch.rewards_TBS,
            batch.values_TBS,
            batch.next_TBS,
            batch.ended_TB,
            batch.over_TB,
            settings.discount,
            settings.trace,
        )
        flat = [
            self.team.rows(part.flatten(0, 1))
            for part in (
                batch.actions_TBSH,
                batch.logprobs_TBS,
                advantages_TBS,
                advantages_TBS + batch.values_TBS,
                batch.values_TBS,
            )
        ]
        seen_PMD = self.team.rows(batch.seen_TBSD.flatten(0, 1))
        critic_PMI = self.team.critic_rows(batch.seen_TBSD.flatten(0, 1))
        figures = list[dict[str, Tensor]]()
        for last in [False] * (settings.passes - 1) + [True]:
            for index in self._minibatches(seen_PMD.shape[1]):
                rows = Rows(*(part[:, index] for part in flat))
                one = self._step(seen_PMD[:, index], critic_PMI[:, index], rows, last)
                figures += [one] if last else []
        explained = _explained(flat[4], flat[3])
        return {**joined(figures), "explained_variance": explained}

    def _minibatches(self, rows: int) -> Sequence[Tensor]:
        parts = max(1, round(rows / self.settings.minibatch))
        order = torch.randperm(rows, generator=self._random, device=self.device)
        return order.tensor_split(parts)

    def _step(
        self, seen_PMD: Tensor, critic_PMI: Tensor, rows: Rows, watched: bool
    ) -> dict[str, Tensor]:
        """One step of the optimizer. Advantages are normalised in each minibatch (Huang et al.,
        detail 7), each policy's gradient is shortened to `norm` (detail 11)."""
        settings, team = self.settings, self.team
        raw_PM = rows.advantages_PM
        deviation_P1, mean_P1 = torch.std_mean(raw_PM, 1, keepdim=True)
        rows = Rows(
            rows.actions_PMH,
            rows.logprobs_PM,
            (raw_PM - mean_P1) / (deviation_P1 + 1e-8),
            rows.returns_PM,
            rows.values_PM,
        )
        acting = forward(team.actor_layers, seen_PMD)
        judging = forward(team.critic_layers, critic_PMI)
        weights = Weights(settings.clip, settings.value, settings.entropy, settings.value_clip)
        found = gradient(acting[-1], judging[-1].squeeze(-1), rows, team.mask_HK, weights, watched)
        backward(team.actor_layers, self._grads[0], acting, found.logits_PMA)
        backward(team.critic_layers, self._grads[1], judging, found.values_PMO)
        length_P1 = torch.linalg.vector_norm(self._grad_PW, dim=1, keepdim=True)
        self._grad_PW.mul_((settings.norm / (length_P1 + 1e-6)).clamp_(max=1.0))
        self._adam.step()
        return {**found.figures, "gradient_norm": length_P1.mean()} if watched else {}

    def state(self) -> dict[str, Any]:
        """All that the future depends on, besides settings and seats."""
        return {
            "steps": self.steps,
            "team": self.team.state(),
            "adam": deepcopy(self._adam.state_dict()),
            "scale": self._scale.state(),
            "random": self._random.get_state(),
            "games": {k: torch.from_numpy(v.copy()) for k, v in self.games.state().items()},
            "others": [dict(script.state()) for _, script in self.seats.others],
            "begun": torch.from_numpy(self._begun.copy()),
            "returns": torch.from_numpy(self._return_BN.copy()),
            "lengths": torch.from_numpy(self._length_B.copy()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`, as if nothing had been between."""
        self.steps = state["steps"]
        self.team.restore(state["team"])
        self._adam.load_state_dict(deepcopy(state["adam"]))  # else both would share tensors
        self._scale.restore(state["scale"])
        self._random.set_state(state["random"])
        self.games.restore({k: v.numpy() for k, v in state["games"].items()})
        for (_, script), own in zip(self.seats.others, state["others"], strict=True):
            script.restore(own)
        self._begun = state["begun"].numpy().copy()
        self._return_BN = state["returns"].numpy().copy()
        self._length_B = state["lengths"].numpy().copy()


def _explained(values: Tensor, returns: Tensor) -> float:
    """Share of the returns' variance that the critic explains."""
    gap = returns.flatten().var(correction=0)
    found = 1 - (returns.flatten().sub(values.flatten())).var(correction=0) / gap.clamp(min=1e-12)
    return float(found)
