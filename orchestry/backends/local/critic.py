"""A learned critic: estimates the return from a state in which all agents' histories are seen.

It is centralised, and only training asks it: the agents act on what they see themselves, as in
MAPPO (arXiv 2103.01955). It has an adapter of its own on the agents' base, and a linear head on the
last token's hidden state.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.memory import MicroBatches, fitting
from orchestry.backends.local.optimizer import TeamOptimizer
from orchestry.backends.local.sampler import Beat, still
from orchestry.backends.local.values import State, explained
from orchestry.core.errors import StoreError, reason
from orchestry.core.learning import LearnConfig
from orchestry.core.seeds import derive

NAME = "critic"
FILE = "critic.pt"
"""Its weights and its optimizer's state, in a checkpoint."""
STEPS = 4
"""Regression steps per update: values must follow a policy that changes."""
_BARE = -1
"""The agents' adapters are off."""


def value_loss(values_S: Tensor, targets_S: Tensor, weights_S: Tensor, total: float) -> Tensor:
    """The sum of weight * (value - target)^2 / 2 over states, divided by `total`, the weight of all
    states: parts of a batch add up to its loss."""
    return (weights_S * (values_S - targets_S) ** 2).sum() / (2.0 * total)


class Critic:
    """Adapter, head and optimizer on the base of other adapters."""

    def __init__(
        self,
        agents: Adapters,
        settings: LearnConfig,
        seed: int,
        micro_tokens: int,
        warn: Callable[[str], None],
        beat: Beat = still,
    ) -> None:
        """`agents`: the adapters that the base wears."""
        self.base, self._agents, self._beat = agents.base, agents, beat
        size = int(self.base.model.config.hidden_size)
        place: dict[str, Any] = {"device": self.base.device, "dtype": torch.float32}
        with fitting("the critic's weights"):
            self.adapters = Adapters(
                self.base,
                [NAME],
                rank=settings.rank,
                alpha=settings.alpha,
                dropout=0.0,
                targets=agents.targets,
                rslora=agents.rslora,
                seed=derive(seed, NAME),
                beside=True,
            )
            self.weight = nn.Parameter(torch.zeros(size, **place))
            self.bias = nn.Parameter(torch.zeros(1, **place))
        self._optimizer = TeamOptimizer(
            {NAME: self.parameters()},
            rate=settings.critic_rate,
            updates=0,  # no warm-up: a longer run begins as a shorter one
            max_norm=settings.max_grad_norm,
        )
        self._micro = MicroBatches(micro_tokens, warn)

    def parameters(self) -> list[nn.Parameter]:
        """All that learns."""
        return [*self.adapters.parameters(), self.weight, self.bias]

    def values(self, states: Sequence[State]) -> list[float]:
        """The estimated return from each state.

        Before the first regression, the mean return of these states.
        """
        if states and not self._optimizer.update:
            total = sum(state.samples for state in states)
            mean = sum(state.target * state.samples for state in states) / total
            with torch.no_grad():
                self.bias.fill_(mean)

        def all_of(tokens: int) -> list[float]:
            with torch.no_grad():
                parts = [self._values(part) for part in _parts(states, tokens, self._most)]
            return [value for part in parts for value in part.tolist()]

        return self._micro.run(all_of)

    def learn(self, states: Sequence[State], values: Sequence[float]) -> dict[str, float]:
        """Regression on the states' returns; `values` are those before it. Returns the figures for
        the journal: the loss before, and the share of the returns' variance explained before."""
        if not states:  # no episode of the update could be played
            return {}
        losses = list[float]()
        for _ in range(STEPS):
            losses.append(
                self._micro.run(lambda n: self._backward(states, n), self._optimizer.drop)
            )
            self._optimizer.step()
        targets = [state.target for state in states]
        return {"value_loss": losses[0], "value_explained": explained(targets, values)}

    def _backward(self, states: Sequence[State], tokens: int) -> float:
        total, loss = float(sum(state.samples for state in states)), 0.0
        self.base.model.train()  # gradient checkpointing acts only then
        try:
            for part in _parts(states, tokens, self._most):
                self._beat(0)
                loss += self._part(part, total)
        finally:
            self.base.model.train(False)
        return loss

    def _part(self, part: Sequence[State], total: float) -> float:
        """The loss of a micro-batch, with its gradient; backward runs inside the adapters' rows,
        because a checkpointed layer is computed again there."""
        place: dict[str, Any] = {"device": self.base.device, "dtype": torch.float32}
        targets_S = torch.tensor([state.target for state in part], **place)
        weights_S = torch.tensor([float(state.samples) for state in part], **place)
        with self._agents.rows(_BARE), self.adapters.rows(0):
            loss = value_loss(self._heard(part), targets_S, weights_S, total)
            self._optimizer.backward(loss)
        return loss.item()

    def _values(self, part: Sequence[State]) -> Tensor:
        with self._agents.rows(_BARE), self.adapters.rows(0):
            return self._heard(part)

    def _heard(self, part: Sequence[State]) -> Tensor:
        """The values of a micro-batch, (S,)."""
        model: Any = self.base.model
        rows = [self._cropped(state) for state in part]
        width = max(map(len, rows))
        ids_SL = torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows])
        lengths_S = torch.tensor([len(row) for row in rows])
        mask_SL = (torch.arange(width)[None] < lengths_S[:, None]).long()
        hidden_SLH = model.get_decoder()(
            input_ids=ids_SL.to(self.base.device),
            attention_mask=mask_SL.to(self.base.device),
            use_cache=False,
        ).last_hidden_state
        last_SH = hidden_SLH[torch.arange(len(rows)), lengths_S - 1].float()
        size = last_SH.shape[-1]
        features_SH = functional.layer_norm(last_SH, (size,)) / size**0.5
        return functional.linear(features_SH, self.weight[None], self.bias).squeeze(-1)

    @property
    def _most(self) -> int:
        return self.base.context

    def _cropped(self, state: State) -> tuple[int, ...]:
        """The end of the state's tokens that the context can hold."""
        return state.ids[-self._most :] or (min(self.base.eos_ids),)

    def save(self, folder: Path) -> None:
        """Writes all that `load` needs."""
        state = {
            "weights": [weight.detach().cpu() for weight in self.parameters()],
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, folder / FILE)

    def load(self, folder: Path) -> None:
        """Continues exactly from a checkpoint; raises StoreError if it can't be read."""
        try:
            state: Mapping[str, Any] = torch.load(
                folder / FILE, map_location="cpu", weights_only=True
            )
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise StoreError(
                f"{folder / FILE} can't be read ({reason(error)}): restore it from a copy"
            ) from None
        with torch.no_grad():
            for weight, saved in zip(self.parameters(), state["weights"], strict=True):
                weight.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])


def _parts(states: Sequence[State], tokens: int, most: int) -> Iterator[list[State]]:
    """The states in order, in micro-batches of at most `tokens` with padding, or of one state."""
    part, longest = list[State](), 0
    for state in states:
        length = min(len(state.ids), most)
        if part and max(longest, length) * (len(part) + 1) > tokens:
            yield part
            part, longest = [], 0
        part.append(state)
        longest = max(longest, length)
    if part:
        yield part
