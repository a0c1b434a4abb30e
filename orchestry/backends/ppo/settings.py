"""The settings of backend ppo."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestry.core.types import Frozen


class PpoConfig(Frozen):
    """How small neural policies learn. Defaults are those that were measured in
    `benchmarks.quality.bucket_ppo`."""

    games: int = Field(256, ge=1)
    """Games that are played at once."""
    horizon: int = Field(64, ge=1)
    """Steps of every game per batch: a batch has games x horizon steps."""
    passes: int = Field(4, ge=1)
    """How often each batch is learned from."""
    minibatch: int = Field(4096, ge=2)
    """Actions per step of the optimizer and policy; a batch's actions are split evenly."""
    learning_rate: float = Field(1e-3, gt=0)
    anneal: bool = True
    """Lowers the learning rate to 0, in a straight line over the run's steps."""
    discount: float = Field(0.99, ge=0, le=1)
    trace: float = Field(0.95, ge=0, le=1)
    """Lambda of the generalised advantage estimates."""
    clip: float = Field(0.2, gt=0)
    value_clip: float | None = Field(None, gt=0)
    """How far a value may move in a batch, in units of scaled returns; None: any distance."""
    entropy: float = Field(0.01, ge=0)
    value: float = Field(0.5, ge=0)
    """Weight of the critic's squared error, halved."""
    norm: float = Field(0.5, gt=0)
    """The longest gradient of a policy; longer ones are shortened."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of policy and critic."""
    normalise: bool = True
    """Observations less their mean, by their standard deviation, both of all so far."""
    scale: bool = True
    """Rewards by the standard deviation of discounted returns so far."""
    reward: Literal["team", "own"] = "team"
    """What an agent learns from: the mean of all agents' rewards, or its own."""
    policies: Literal["shared", "own"] = "shared"
    """One policy for all agents (who they are is in what they see), or one per agent."""
    critic: Literal["own", "central"] = "own"
    """What the critic sees: what its agent sees, or what all see (MAPPO, arXiv 2103.01955)."""
