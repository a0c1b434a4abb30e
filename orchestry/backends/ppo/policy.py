"""Policies and critics of a team: small networks side by side, and what they see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orchestry.backends.ppo import kernels
from orchestry.backends.ppo.loss import logprobs, of_actions
from orchestry.backends.ppo.net import Layout, forward
from orchestry.backends.ppo.running import Moments

_POLICY_GAIN, _CRITIC_GAIN = 0.01, 1.0
"""Of the last layers (Huang et al., detail 2)."""


class Team:
    """The policies of S seats, and their critics. P is 1 where all seats share one, else S. Policy
    and critic have no layer in common (Huang et al., detail 13; Andrychowicz et al., arXiv
    2006.05990).

    Shapes: B games, S seats, D numbers of an observation, H choices, A logits of all choices.
    """

    def __init__(
        self,
        seats: int,
        observed: int,
        choices: tuple[int, ...],
        hidden: tuple[int, ...],
        *,
        shared: bool = True,
        central: bool = False,
        normalise: bool = True,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.seats, self.policies = seats, 1 if shared else seats
        self.device, self.central, self.normalise = torch.device(device), central, normalise
        self.choices = choices
        seen = observed * (seats if central else 1)
        seen += seats if central and self.policies == 1 else 0
        self.actor = Layout((observed, *hidden, sum(choices)))
        self.critic = Layout((seen, *hidden, 1))
        size = self.actor.size + self.critic.size
        self.flat_PW = torch.zeros(self.policies, size, device=self.device)
        """All parameters."""
        self.seen = Moments(observed, self.device)
        drawn = torch.Generator().manual_seed(seed)
        self.actor.fill(self.flat_PW[:, : self.actor.size], _POLICY_GAIN, drawn)
        self.critic.fill(self.flat_PW[:, self.actor.size :], _CRITIC_GAIN, drawn)
        self.actor_layers, self.critic_layers = self.views(self.flat_PW)

    @property
    def finite(self) -> bool:
        """Whether all parameters are finite numbers."""
        return bool(self.flat_PW.isfinite().all())

    def views(self, flat_PW: Tensor) -> tuple[list[Any], list[Any]]:
        """The layers of policies and critics in such a vector."""
        split = self.actor.size
        return self.actor.layers(flat_PW[:, :split]), self.critic.layers(flat_PW[:, split:])

    def normalised(self, observations_BSD: Tensor, learn: bool = False) -> Tensor:
        """What networks see; `learn`: counted first."""
        if not self.normalise:
            return observations_BSD
        if learn:
            self.seen.add(observations_BSD.flatten(0, 1))
        return self.seen.normalised(observations_BSD)

    def rows(self, of_BSX: Tensor) -> Tensor:
        """(B, S, ...) as (P, M, ...): each policy's rows."""
        if self.policies == 1:
            return of_BSX.flatten(0, 1)[None]
        return of_BSX.transpose(0, 1)

    def games(self, of_PMX: Tensor, seats: int) -> Tensor:
        """The inverse of `rows`. A shared policy plays any number of seats."""
        if self.policies == 1:
            return of_PMX[0].view(-1, seats, *of_PMX.shape[2:])
        return of_PMX.transpose(0, 1)

    def critic_rows(self, seen_BSD: Tensor) -> Tensor:
        """What critics see, (P, M, I). A central one sees all seats' observations, and which seat
        it speaks for if it is shared."""
        if not self.central:
            return self.rows(seen_BSD)
        whole_BSX = seen_BSD.flatten(1)[:, None].expand(-1, self.seats, -1)
        if self.policies == 1:
            which = torch.eye(self.seats, device=self.device).expand(len(seen_BSD), -1, -1)
            whole_BSX = torch.cat((whole_BSX, which), -1)
        return self.rows(whole_BSX)

    def logprobs(self, seen_BSD: Tensor) -> list[Tensor]:
        """Of every value of each choice, (B, S, K), nats; of normalised observations."""
        logits_PMA = forward(self.actor_layers, self.rows(seen_BSD))[-1]
        return logprobs(self.games(logits_PMA, seen_BSD.shape[1]), self.choices)

    def values(self, seen_BSD: Tensor) -> Tensor:
        """Of each seat's state, (B, S), in units of scaled returns."""
        values_PMO = forward(self.critic_layers, self.critic_rows(seen_BSD))[-1]
        return self.games(values_PMO, seen_BSD.shape[1]).squeeze(-1)

    def act(self, seen_BSD: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Actions (B, S, H) and their joint log-probabilities (B, S). Without a generator the
        likeliest."""
        logits_PMA = forward(self.actor_layers, self.rows(seen_BSD))[-1]
        logits_BSA = self.games(logits_PMA, seen_BSD.shape[1])
        shape = (*logits_BSA.shape[:2], len(self.choices))
        uniform_BSH = torch.full(shape, -1.0, device=self.device)
        if generator is not None:
            uniform_BSH.uniform_(generator=generator)
        way = _on_cpu if self.device.type == "cpu" else by_operations
        return way(logits_BSA.contiguous(), self.choices, uniform_BSH)

    def copy(self) -> Team:
        """The team as it is now, on the CPU."""
        seats, hidden = self.seats, self.actor.widths[1:-1]
        found = Team(
            seats,
            self.actor.widths[0],
            self.choices,
            hidden,
            shared=self.policies == 1,
            central=self.central,
            normalise=self.normalise,
        )
        found.restore(self.state())
        return found

    def state(self) -> dict[str, Any]:
        """Weights, and what observations were like."""
        return {"weights": self.flat_PW.clone(), "seen": self.seen.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`."""
        self.flat_PW.copy_(state["weights"])
        self.seen.restore(state["seen"])


def _on_cpu(
    logits_BSA: Tensor, sizes: tuple[int, ...], uniform_BSH: Tensor
) -> tuple[Tensor, Tensor]:
    """The actions that uniform numbers fall on, below 0 the likeliest; see `Team.act`."""
    actions_BSH = torch.empty(uniform_BSH.shape, dtype=torch.int64)
    logprobs_BS = torch.empty(uniform_BSH.shape[:2])
    kernels.draw(
        logits_BSA.flatten(0, 1).numpy(),
        np.asarray(sizes),
        uniform_BSH.flatten(0, 1).numpy(),
        actions_BSH.flatten(0, 1).numpy(),
        logprobs_BS.flatten().numpy(),
    )
    return actions_BSH, logprobs_BS


def by_operations(
    logits_BSA: Tensor, sizes: tuple[int, ...], uniform_BSH: Tensor
) -> tuple[Tensor, Tensor]:
    """The same by torch's operations, for a GPU."""
    found, logp_H = list[Tensor](), logprobs(logits_BSA, sizes)
    for h, logp in enumerate(logp_H):
        sums, uniform = logp.exp().cumsum(-1), uniform_BSH[..., h, None]
        fell = (sums <= uniform * sums[..., -1:]).sum(-1).clamp(max=logp.shape[-1] - 1)
        found.append(torch.where(uniform[..., 0] < 0, logp.argmax(-1), fell))
    actions_BSH = torch.stack(found, -1)
    return actions_BSH, of_actions(logp_H, actions_BSH)
