"""Mean and variance of all numbers so far, and what they are used for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from orchestry.core.errors import LearnError

LIMIT = 10.0
"""Normalised numbers are cut here (Huang et al., details 6 and 7 for Mujoco; Engstrom et al., arXiv
2005.12729)."""
_SMALL = 1e-8


class Moments:
    """Mean and variance by place, in one pass (Chan, Golub and LeVeque, 1983), in float64."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(width, dtype=torch.float64, device=device)
        self.square = torch.zeros(width, dtype=torch.float64, device=device)
        """Sum of squared deviations."""

    def add(self, rows_RW: Tensor) -> None:
        """Counts R rows."""
        count, mean = len(rows_RW), rows_RW.mean(0, dtype=torch.float64)
        # Squares over these rows in float32 are near enough; those over all rows are not.
        square = (rows_RW - mean.to(torch.float32)).square_().sum(0).to(torch.float64)
        self.join(count, mean, square)

    def join(self, count: int | Tensor, mean: Tensor, square: Tensor) -> None:
        """Counts so many rows, at least one, of which only these figures are known."""
        whole, apart = self.count + count, mean - self.mean
        self.square += square + apart.square() * self.count * count / whole
        self.mean += apart * count / whole
        self.count = whole

    def settle(self) -> None:
        """Counts what other processes of a launch saw too (`ranks.Shared`); here there are none."""

    @property
    def deviation(self) -> Tensor:
        """The standard deviation, float32; 1 before anything was counted, or where nothing
        varies."""
        found = (self.square / self.count.clamp(min=1)).sqrt()
        return torch.where(found > _SMALL, found, 1.0).to(torch.float32)

    def normalised(self, rows: Tensor) -> Tensor:
        """(rows - mean) / deviation, cut at LIMIT."""
        scaled = (rows - self.mean.to(torch.float32)).div_(self.deviation)
        return scaled.clamp_(-LIMIT, LIMIT)

    def state(self) -> dict[str, Tensor]:
        """To go on from, exactly."""
        return {name: getattr(self, name).clone() for name in ("count", "mean", "square")}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a `state`."""
        for name in ("count", "mean", "square"):
            getattr(self, name).copy_(state[name])


class RewardScale:
    """Divides rewards by the deviation of the discounted return (Engstrom et al., arXiv 2005.12729,
    section 2). The return of each game and agent goes on from batch to batch."""

    def __init__(self, shape: tuple[int, ...], discount: float, device: torch.device) -> None:
        self.moments = Moments(1, device)
        self._return_BN = torch.zeros(shape, device=device)
        self._discount = discount

    def scaled(self, rewards_TBN: Tensor, over_TB: Tensor) -> Tensor:
        """The rewards of a batch, counted first."""
        returns = []
        for reward_BN, over_B in zip(rewards_TBN, over_TB, strict=True):
            self._return_BN = self._return_BN * self._discount + reward_BN
            returns.append(self._return_BN)
            self._return_BN = self._return_BN * (~over_B)[:, None]
        self.moments.add(torch.stack(returns).flatten()[:, None])
        self.moments.settle()
        if self.moments.deviation.isposinf().any():  # all scaled rewards would be 0
            raise LearnError(
                "the deviation of the task's rewards is no finite number: give smaller rewards, or "
                "set ppo.scale=false"
            )
        return rewards_TBN / self.moments.deviation

    def state(self) -> dict[str, Tensor]:
        """To go on from, exactly."""
        return {**self.moments.state(), "return": self._return_BN.clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from a `state`."""
        self.moments.restore(state)
        self._return_BN = state["return"].to(self._return_BN.device, copy=True)
