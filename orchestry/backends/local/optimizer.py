"""One AdamW for a team: warm-up, clipping, accumulation; non-finite numbers change no weight.

Gradients are clipped per agent, because each agent is a separate policy, as in MAGRPO. With a
common norm, one agent's spike would shrink the others' steps, and a step would depend on the size
of the team. Agents that share all their parameters count as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from orchestry.core.errors import LearnError, NotFiniteError

Decay = Literal["none", "linear", "cosine"]
MAX_WARM_UP = 100


def warm_up(updates: int) -> int:
    """Warm-up updates of a run: 10 % of its updates, at most MAX_WARM_UP."""
    return min(MAX_WARM_UP, updates // 10)


@dataclass(frozen=True, slots=True)
class Step:
    """The figures of one update."""

    update: int
    """Counted from 1."""
    rate: float
    """Its learning rate."""
    norms: Mapping[str, float]
    """Each agent's gradient norm before clipping; 0.0 if it had nothing to learn."""


class TeamOptimizer:
    """AdamW over the parameters of N agents.

    `backward` once per micro-batch, `step` once per update. The learning rate rises linearly over
    the warm-up, from rate / warm_up in the first update to `rate`. Then it stays or, with `decay`,
    falls to almost 0 in the last update, linearly or along half a cosine. An agent without a
    gradient, or with a zero gradient, stays unchanged, moments included; momentum alone does not
    move it.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Parameter]],
        *,
        rate: float,
        updates: int,
        max_norm: float = 1.0,
        weight_decay: float = 0.0,
        decay: Decay = "none",
    ) -> None:
        """`parameters` by agent: leaf tensors. Two agents share all of them or none.

        `updates`: number of updates of the whole run. Raises ValueError if two agents share only
        some parameters.
        """
        self.rate, self.warm_up, self.max_norm = rate, warm_up(updates), max_norm
        self._updates, self._decay = updates, decay
        self.update = 0
        """Updates made."""
        self._pending = 0
        self._policies = _policies(parameters)
        self._adamw = torch.optim.AdamW(
            [{"params": list(mine)} for mine in self._policies.values()],
            lr=rate,
            weight_decay=weight_decay,
        )

    @property
    def size(self) -> int:
        """Number of trained numbers."""
        groups = self._adamw.param_groups
        return sum(each.numel() for group in groups for each in group["params"])

    @property
    def next_rate(self) -> float:
        """The learning rate of the next update."""
        if self.update < self.warm_up:
            return self.rate * (self.update + 1) / self.warm_up
        return self.rate * self._left()

    def _left(self) -> float:
        """The share of the rate that is left in the next update, which is after the warm-up."""
        done = (self.update - self.warm_up) / max(1, self._updates - self.warm_up)
        if self._decay == "linear":
            return max(0.0, 1.0 - done)
        if self._decay == "cosine":
            return (1.0 + math.cos(math.pi * min(1.0, done))) / 2.0
        return 1.0

    def backward(self, loss: Tensor) -> None:
        """Adds a micro-batch's gradient; `loss` is its part of the update's whole loss.

        If `policy_loss` got the total number of `actions`, the parts add up to the gradient of one
        large batch. Raises NotFiniteError for a non-finite loss; no weight has changed.
        """
        value = loss.item()
        if not math.isfinite(value):
            self.drop()
            raise NotFiniteError(
                f"the loss of step {self.update + 1} is {value}: no weight has moved by it"
            )
        torch.autograd.backward(loss)
        self._pending += 1

    def step(self) -> Step:
        """Clips and applies the accumulated gradient, then clears it.

        Raises NotFiniteError for a non-finite gradient, before any weight changes.
        """
        norms = {
            agents: float(clip_grad_norm_(mine, self.max_norm))
            for agents, mine in self._policies.items()
        }
        for agents, norm in norms.items():
            if not math.isfinite(norm):
                self.drop()
                raise NotFiniteError(
                    f"the gradient of {', '.join(agents)} in step {self.update + 1} is {norm}: no "
                    "weight has moved by it"
                )
            if norm == 0.0:
                _drop(self._policies[agents])
        rate = self.next_rate
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self.drop()
        self.update += 1
        by_agent = {agent: norm for agents, norm in norms.items() for agent in agents}
        return Step(update=self.update, rate=rate, norms=by_agent)

    def drop(self) -> None:
        """Clears the gradient accumulated since the last step."""
        self._adamw.zero_grad(set_to_none=True)
        self._pending = 0

    def state_dict(self) -> dict[str, Any]:
        """The state, besides the parameters, that a resumed run needs to continue exactly.

        Raises ValueError between `backward` and `step`: gradients are not saved.
        """
        if self._pending:
            raise ValueError("an update is under way: save after step() or drop()")
        return {
            "update": self.update,
            "warm_up": self.warm_up,
            "agents": self._agents(),
            "adamw": self._adamw.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state with its warm-up, so that an extended run does not warm up
        again. Learning rate, its decay over this object's updates, and clipping stay this object's.

        Raises LearnError for the state of another team or of parameters with other shapes.
        """
        if state["agents"] != self._agents():
            names = "; ".join(name for name, _ in state["agents"])
            raise LearnError(
                f"the optimizer's state is of agents {names} with other parameters than "
                f"{'; '.join(name for name, _ in self._agents())} have now: resume with the config "
                "that the run was started with"
            )
        self.drop()
        self._adamw.load_state_dict(state["adamw"])
        self.update, self.warm_up = int(state["update"]), int(state["warm_up"])

    def _agents(self) -> list[tuple[str, list[list[int]]]]:
        """Agents' names, and the shapes of their parameters in order."""
        return [
            (", ".join(agents), [list(p.shape) for p in mine])
            for agents, mine in self._policies.items()
        ]


def _policies(
    parameters: Mapping[str, Sequence[Parameter]],
) -> dict[tuple[str, ...], list[Parameter]]:
    """Parameters by their agents; agents with the same parameters are one entry."""
    owners: dict[tuple[int, ...], list[str]] = {}
    for agent, mine in parameters.items():
        owners.setdefault(tuple(id(parameter) for parameter in mine), []).append(agent)
    seen = [one for ids in owners for one in ids]
    if len(set(seen)) < len(seen):
        raise ValueError("two agents share some of their parameters: share all of them, or none")
    return {tuple(agents): list(parameters[agents[0]]) for agents in owners.values()}


def _drop(parameters: Sequence[Parameter]) -> None:
    """Sets zero gradients to None: AdamW skips these, while zeros would move parameters by
    momentum."""
    for parameter in parameters:
        parameter.grad = None
