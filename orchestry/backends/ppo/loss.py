"""PPO's loss for actions of several choices, and its gradient, written out.

Schulman et al., arXiv 1707.06347, equation 9, as a loss: the clipped surrogate (7), the value's
squared error, and the entropy. Shapes: P policies, M rows, H choices of up to K values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

IMPOSSIBLE = -1e9
"""The logit of values that a choice does not have."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the loss."""

    clip: float = 0.2
    value: float = 0.5
    entropy: float = 0.01
    value_clip: float | None = None
    """How far a value may move from the drawing policy's; None: any distance. Andrychowicz et al.
    found no gain in it."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Actions of H choices, side by side in rows of K."""

    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """K: the most values of a choice."""
        return max(self.sizes)

    @property
    def outputs(self) -> int:
        """Logits of a policy."""
        return len(self.sizes) * self.width

    def mask(self, device: torch.device) -> Tensor:
        """(H, K), added to logits: 0, or IMPOSSIBLE."""
        mask = torch.full((len(self.sizes), self.width), IMPOSSIBLE)
        for row, size in zip(mask, self.sizes, strict=True):
            row[:size] = 0.0
        return mask.to(device)


def logprobs(logits_PMA: Tensor, mask_HK: Tensor) -> Tensor:
    """Of every value of every choice, (P, M, H, K), nats."""
    return (logits_PMA.view(*logits_PMA.shape[:-1], *mask_HK.shape) + mask_HK).log_softmax(-1)


def of_actions(logprobs_PMHK: Tensor, actions_PMH: Tensor) -> Tensor:
    """Of the joint of all choices, (P, M), nats."""
    return logprobs_PMHK.gather(-1, actions_PMH[..., None]).squeeze(-1).sum(-1)


@dataclass(frozen=True, slots=True)
class Rows:
    """What was drawn and is learned from: M actions of each policy."""

    actions_PMH: Tensor
    logprobs_PM: Tensor
    """Of the policy that drew them."""
    advantages_PM: Tensor
    returns_PM: Tensor
    values_PM: Tensor
    """Of the critic at that time."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Of the loss, by the networks' outputs; and what is worth watching, as tensors."""

    logits_PMA: Tensor
    values_PMO: Tensor
    figures: dict[str, Tensor]


def gradient(
    logits_PMA: Tensor,
    values_PM: Tensor,
    rows: Rows,
    mask_HK: Tensor,
    weights: Weights,
    watched: bool = False,
) -> Gradient:
    """The gradient of the sum over P of the mean loss over M. `watched`: also figures."""
    m = logits_PMA.shape[1]
    logp_PMHK = logprobs(logits_PMA, mask_HK)
    p_PMHK = logp_PMHK.exp()
    drawn_PM = of_actions(logp_PMHK, rows.actions_PMH)
    change_PM = drawn_PM - rows.logprobs_PM
    ratio_PM = change_PM.exp()
    # min(r A, clip(r) A) has a gradient where the clip does not bind.
    bound_PM = torch.where(rows.advantages_PM >= 0, 1.0 + weights.clip, 1.0 - weights.clip)
    free_PM = (ratio_PM - bound_PM) * rows.advantages_PM <= 0
    push_PM = ratio_PM * rows.advantages_PM * free_PM / -m
    entropy_PMH = -(p_PMHK * logp_PMHK).sum(-1)
    bonus_PMHK = p_PMHK * (logp_PMHK + entropy_PMH[..., None])
    grad_PMHK = bonus_PMHK * (weights.entropy / m) - p_PMHK * push_PM[..., None, None]
    grad_PMHK.scatter_add_(
        -1, rows.actions_PMH[..., None], push_PM[..., None, None].expand(*entropy_PMH.shape, 1)
    )
    error_PM, active_PM = _value_error(values_PM, rows, weights)
    grad_value_PM = error_PM * (weights.value / m)
    figures = dict[str, Tensor]()
    if watched:
        figures = {
            "entropy": entropy_PMH.sum(-1).mean(),
            "kl": (ratio_PM - 1 - change_PM).mean(),  # k3 of Schulman's note on approximating KL
            "clip_fraction": (~free_PM).float().mean(),
            "value_loss": error_PM.square().mean() / 2,
        }
    if active_PM is not None:
        grad_value_PM = grad_value_PM * active_PM
    return Gradient(grad_PMHK.flatten(-2), grad_value_PM[..., None], figures)


def _value_error(values_PM: Tensor, rows: Rows, weights: Weights) -> tuple[Tensor, Tensor | None]:
    """What is squared and halved, and where it has a gradient (None: everywhere)."""
    error_PM = values_PM - rows.returns_PM
    if weights.value_clip is None:
        return error_PM, None
    move_PM = values_PM - rows.values_PM
    near_PM = move_PM.clamp(-weights.value_clip, weights.value_clip)
    clipped_PM = rows.values_PM + near_PM - rows.returns_PM
    binds_PM = clipped_PM.square() > error_PM.square()
    # Where the clip binds, the clipped error counts, and does not depend on the value any more.
    inside_PM = move_PM.abs() <= weights.value_clip
    return torch.where(binds_PM, clipped_PM, error_PM), (~binds_PM | inside_PM)


def advantages(
    rewards_TBN: Tensor,
    values_TBN: Tensor,
    next_TBN: Tensor,
    ended_TB: Tensor,
    over_TB: Tensor,
    discount: float,
    trace: float,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al., arXiv 1506.02438, equation 16), (T, B, N).

    `next_TBN`: the values after each step; of a game that was cut off, that of its last
    observation. Nothing follows where a game has `ended`; no trace passes where it is `over`.
    """
    delta_TBN = rewards_TBN + discount * next_TBN * (~ended_TB)[..., None] - values_TBN
    passes_TBO = (~over_TB)[..., None] * (discount * trace)
    found = torch.empty_like(delta_TBN)
    ahead = torch.zeros_like(delta_TBN[0])
    for t in reversed(range(len(delta_TBN))):
        ahead = delta_TBN[t] + passes_TBO[t] * ahead
        found[t] = ahead
    return found


def joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """The means of the figures of several minibatches."""
    names = parts[0] if parts else {}
    return {name: float(torch.stack([one[name] for one in parts]).mean()) for name in names}
