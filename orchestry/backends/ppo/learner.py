"""PPO over many games at once: play a batch, estimate advantages, learn from it in minibatches.

Details are numbered as in Huang et al., The 37 Implementation Details of Proximal Policy
Optimization (ICLR blog track, 2022).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestry.backends.ppo.loss import Rows, Weights, advantages, gradient, joined
from orchestry.backends.ppo.net import backward, forward
from orchestry.backends.ppo.policy import Team
from orchestry.backends.ppo.pool import Pool
from orchestry.backends.ppo.running import RewardScale
from orchestry.core.ppo import PpoConfig
from orchestry.core.seeds import derive
from orchestry.task.vector import Player, Vectors, play_seats

_EPSILON = 1e-5
"""Adam's (Huang et al., detail 3)."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Who plays where: the learning team, and others by rules of their own."""

    learning: tuple[int, ...]
    others: tuple[Player, ...] = ()


@dataclass(slots=True)
class Played:
    """Games that ended in a batch."""

    returns: list[float]
    """The team's mean return of each."""
    own: list[float]
    """The learning seats' mean return of each."""
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """T steps of B games, as S learning seats saw them."""

    seen_TBSD: Tensor
    actions_TBSH: Tensor
    logprobs_TBS: Tensor
    rewards_TBS: Tensor
    ended_TB: Tensor
    over_TB: Tensor
    values_TBS: Tensor
    next_TBS: Tensor


Spread = tuple[Tensor, Tensor]
"""Deviation and mean, (P, 1) each."""


class Learner:
    """A team that learns in games. Everything that its future depends on is in `state`."""

    sharers = 1
    """Processes that play `settings.games` between them, all as many (`ranks.ParallelLearner`)."""

    def __init__(
        self,
        games: Vectors,
        settings: PpoConfig,
        seats: Seats,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """`games` are those of this process."""
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
        self._adam, self._left = Adam(self.team.flat_PW), 1.0
        self._seed = derive(seed, "actions")
        self._random = torch.Generator(self.device).manual_seed(self._seed)
        self._pools = [one.script for one in seats.others if isinstance(one.script, Pool)]
        for pool in self._pools:
            pool.grow(0, self.team)
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
        and the weight of the entropy fall (of the rate: Huang et al., detail 4; Andrychowicz et
        al., arXiv 2006.05990)."""
        left = max(0.0, 1 - self.steps / whole) if whole else 1.0
        self._left = left if self.settings.anneal else 1.0
        with torch.no_grad():
            batch, played = self._play()
            self.team.seen.settle()
            if self.settings.scale:
                scaled_TBS = self._scale.scaled(batch.rewards_TBS, batch.over_TB)
                batch = replace(batch, rewards_TBS=scaled_TBS)
            figures = self._learn(batch)
        self.steps += self.batch_steps
        for pool in self._pools:
            pool.grow(self.steps, self.team)
        return figures, played

    def _play(self) -> tuple[Batch, Played]:
        """A batch. What follows a game that was cut off is the value of its last observation, not 0
        (partial-episode bootstrapping: Pardo et al., arXiv 1712.00378)."""
        games, horizon = self.games, self.settings.horizon
        played, steps, cut = Played([], [], []), list[tuple[Tensor, ...]](), dict[int, Tensor]()
        for t in range(horizon):
            seen_BSD = self._seen(games.observations, learn=True)
            actions_BSH, logprobs_BS = self.team.act(seen_BSD, self._random)
            values_BS = self.team.values(seen_BSD)
            games.step(self._all_actions(actions_BSH))
            ended_B, over_B = games.ended.copy(), games.ended | games.cut
            rewards_BS = self._rewards(games.rewards)
            if games.cut.any():
                cut[t] = self.team.values(self._seen(games.final))
            self._count(over_B, played)
            flags = (torch.from_numpy(ended_B), torch.from_numpy(over_B))
            steps.append((seen_BSD, actions_BSH, logprobs_BS, values_BS, rewards_BS, *flags))
        last_BS = self.team.values(self._seen(games.observations))
        columns = [torch.stack(column).to(self.device) for column in zip(*steps, strict=True)]
        seen_TBSD, actions_TBSH, logprobs_TBS, values_TBS, rewards_TBS, ended_TB, over_TB = columns
        next_TBS = torch.cat((values_TBS[1:], last_BS[None]))
        for t, values_BS in cut.items():
            next_TBS[t][over_TB[t]] = values_BS[over_TB[t]]
        batch = Batch(
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
        play_seats(self.seats.others, self.games.observations, self._begun, whole)
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
        returns_BN = self._return_BN[over_B]
        played.returns += returns_BN.mean(1).tolist()
        played.own += returns_BN[:, [*self.seats.learning]].mean(1).tolist()
        played.lengths += self._length_B[over_B].tolist()
        self._return_BN[over_B] = 0.0
        self._length_B[over_B] = 0
        self._begun = over_B

    def _learn(self, batch: Batch) -> dict[str, float]:
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
        observed = [self.team.rows(batch.seen_TBSD.flatten(0, 1))]
        if self.team.central:
            observed.append(self.team.critic_rows(batch.seen_TBSD.flatten(0, 1)))
        figures = list[dict[str, Tensor]]()
        for last in [False] * (settings.passes - 1) + [True]:
            parts = [
                (part[0], part[len(observed) - 1], Rows(*part[len(observed) :]))
                for part in self._minibatches([*observed, *flat])
            ]
            spreads = self._spreads([rows.advantages_PM for _, _, rows in parts])
            for (seen, judged, rows), spread in zip(parts, spreads, strict=True):
                one = self._step(seen, judged, rows, spread, last)
                figures += [one] if last else []
        explained = _explained(flat[4], flat[3])
        return {**joined(figures), "explained_variance": explained}

    def _minibatches(self, columns: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """Columns (P, M, ...) in a new order, in even parts (Huang et al., detail 6; Andrychowicz
        et al.)."""
        count = columns[0].shape[1]
        order = torch.randperm(count, generator=self._random, device=self.device)
        # At least two rows in each: one has no deviation to normalise its advantage by.
        parts = max(1, min(round(count * self.sharers / self.settings.minibatch), count // 2))
        # Each shuffled as a whole: to take rows part by part costs a call for each. `index_select`
        # copies whole rows, five times as fast as `one[:, order]`.
        mixed = (one.index_select(1, order) for one in columns)
        return zip(*(torch.tensor_split(one, parts, 1) for one in mixed), strict=True)

    def _step(
        self, seen_PMD: Tensor, critic_PMI: Tensor, rows: Rows, spread: Spread, watched: bool
    ) -> dict[str, Tensor]:
        """One step of the optimizer. Advantages are normalised in each minibatch (Huang et al.,
        detail 7), each policy's gradient is shortened to `norm` (detail 11)."""
        settings, team = self.settings, self.team
        deviation_P1, mean_P1 = spread
        rows = Rows(
            rows.actions_PMH,
            rows.logprobs_PM,
            (rows.advantages_PM - mean_P1) / (deviation_P1 + 1e-8),
            rows.returns_PM,
            rows.values_PM,
        )
        acting = forward(team.actor_layers, seen_PMD)
        judging = forward(team.critic_layers, critic_PMI)
        entropy = settings.entropy * self._left
        weights = Weights(settings.clip, settings.value, entropy, settings.value_clip)
        found = gradient(acting[-1], judging[-1].squeeze(-1), rows, team.choices, weights, watched)
        backward(team.actor_layers, self._grads[0], acting, found.logits_PMA)
        backward(team.critic_layers, self._grads[1], judging, found.values_PMO)
        self._agree()
        length_P1 = torch.linalg.vector_norm(self._grad_PW, dim=1, keepdim=True)
        self._grad_PW.mul_((settings.norm / (length_P1 + 1e-6)).clamp_(max=1.0))
        self._adam.step(self._grad_PW, settings.learning_rate * self._left)
        return {**found.figures, "gradient_norm": length_P1.mean()} if watched else {}

    def _spreads(self, parts: Sequence[Tensor]) -> list[Spread]:
        """Of each minibatch's advantages (P, M)."""
        return [torch.std_mean(raw_PM, 1, keepdim=True) for raw_PM in parts]

    def _agree(self) -> None:
        """Makes the gradient that of all processes; here there is one."""

    def close(self) -> None:
        """See `ranks.ParallelLearner`; one process has nothing to let go."""

    def state(self) -> dict[str, Any]:
        """All that the future depends on, besides settings and seats."""
        return {
            "steps": self.steps,
            "team": self.team.state(),
            "adam": self._adam.state(),
            "scale": self._scale.state(),
            "random": self._random.get_state(),
            "games": {k: torch.from_numpy(v.copy()) for k, v in self.games.state().items()},
            "others": [dict(other.script.state()) for other in self.seats.others],
            "begun": torch.from_numpy(self._begun.copy()),
            "returns": torch.from_numpy(self._return_BN.copy()),
            "lengths": torch.from_numpy(self._length_B.copy()),
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a `state`, as if nothing had been between. False: it is of another kind of
        device, whose random numbers can't be continued here, so they begin anew."""
        self.steps = state["steps"]
        self.team.restore(state["team"])
        self._adam.restore(state["adam"])
        self._scale.restore(state["scale"])
        same = len(state["random"]) == len(self._random.get_state())
        if same:
            self._random.set_state(state["random"])
        else:  # a CPU's generator has 5,056 bytes, a GPU's 16
            self._random.manual_seed(derive(self._seed, self.steps))
        self.games.restore({k: v.numpy() for k, v in state["games"].items()})
        for other, own in zip(self.seats.others, state["others"], strict=True):
            other.script.restore(own)
        self._begun = state["begun"].numpy().copy()
        self._return_BN = state["returns"].numpy().copy()
        self._length_B = state["lengths"].numpy().copy()
        return same


class Adam:
    """Kingma and Ba, arXiv 1412.6980, algorithm 1, on one tensor: torch's own takes longer to look
    at its arguments than this takes to compute."""

    def __init__(self, weights: Tensor, decay: tuple[float, float] = (0.9, 0.999)) -> None:
        self._weights, self._decay, self._steps = weights, decay, 0
        self._mean, self._square = torch.zeros_like(weights), torch.zeros_like(weights)

    def step(self, grad: Tensor, rate: float) -> None:
        """Changes the weights in place."""
        first, second = self._decay
        self._steps += 1
        self._mean.lerp_(grad, 1 - first)
        self._square.mul_(second).addcmul_(grad, grad, value=1 - second)
        scale = (self._square / (1 - second**self._steps)).sqrt_().add_(_EPSILON)
        self._weights.addcdiv_(self._mean, scale, value=-rate / (1 - first**self._steps))

    def state(self) -> dict[str, Any]:
        """To go on from, exactly."""
        return {"steps": self._steps, "mean": self._mean.clone(), "square": self._square.clone()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`."""
        self._steps = state["steps"]
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])


def _explained(values: Tensor, returns: Tensor) -> float:
    """Share of the returns' variance that the critic explains."""
    gap = returns.flatten().var(correction=0)
    found = 1 - (returns.flatten().sub(values.flatten())).var(correction=0) / gap.clamp(min=1e-12)
    return float(found)
