"""PPO's loss for actions of several choices, and its gradient, written out.

Schulman et al., arXiv 1707.06347, equation 9, as a loss: the clipped surrogate (7), the value's
squared error, and the entropy. Shapes: P policies, M rows, H choices, A logits of all choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orchestry.backends.ppo import kernels


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the loss."""

    clip: float = 0.2
    value: float = 0.5
    entropy: float = 0.01
    """Of the bonus (Schulman et al., equation 9; Huang et al., detail 10)."""
    value_clip: float | None = None
    """How far a value may move from the drawing policy's; None: any distance (Huang et al., detail
    9). Andrychowicz et al., arXiv 2006.05990, found no gain in it."""


def logprobs(logits_PMA: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Of every value of each choice, (P, M, K), nats."""
    return [part.log_softmax(-1) for part in torch.split(logits_PMA, list(sizes), -1)]


def of_actions(logprobs_H: Sequence[Tensor], actions_PMH: Tensor) -> Tensor:
    """Of the joint of all choices, (P, M), nats: a choice is drawn without regard to the others
    (Huang et al., the detail of MultiDiscrete action spaces)."""
    own = [
        each.gather(-1, actions_PMH[..., h, None]).squeeze(-1) for h, each in enumerate(logprobs_H)
    ]
    return torch.stack(own).sum(0)


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
    sizes: Sequence[int],
    weights: Weights,
    watched: bool = False,
) -> Gradient:
    """The gradient of the sum over P of the mean loss over M. `sizes`: values of each choice, whose
    logits lie side by side. `watched`: also figures."""
    by_logit = _on_cpu if logits_PMA.device.type == "cpu" else by_operations
    grad_PMA, sums = by_logit(logits_PMA, rows, sizes, weights)
    m, count = logits_PMA.shape[1], values_PM.numel()
    error_PM, active_PM = _value_error(values_PM, rows, weights)
    grad_value_PM = error_PM * (weights.value / m)
    if active_PM is not None:
        grad_value_PM = grad_value_PM * active_PM
    figures = dict[str, Tensor]()
    if watched:
        figures = {
            "entropy": sums[kernels.ENTROPY] / count,
            "kl": sums[kernels.KL] / count,  # k3 of Schulman's note on approximating KL
            "clip_fraction": sums[kernels.CLIPPED] / count,
            "value_loss": error_PM.square().mean() / 2,
        }
    return Gradient(grad_PMA, grad_value_PM[..., None], figures)


def _on_cpu(
    logits_PMA: Tensor, rows: Rows, sizes: Sequence[int], weights: Weights
) -> tuple[Tensor, Tensor]:
    """By the logits, and sums over all rows."""
    grad_PMA = torch.empty_like(logits_PMA)
    sums = torch.zeros(3, dtype=torch.float64)
    kernels.push(
        logits_PMA.flatten(0, 1).numpy(),
        np.asarray(sizes),
        rows.actions_PMH.flatten(0, 1).numpy(),
        rows.logprobs_PM.flatten().numpy(),
        rows.advantages_PM.flatten().numpy(),
        weights.clip,
        weights.entropy,
        float(logits_PMA.shape[1]),
        grad_PMA.flatten(0, 1).numpy(),
        sums.numpy(),
    )
    return grad_PMA, sums


def by_operations(
    logits_PMA: Tensor, rows: Rows, sizes: Sequence[int], weights: Weights
) -> tuple[Tensor, Tensor]:
    """The same by torch's operations, for a GPU."""
    m, logp_H = logits_PMA.shape[1], logprobs(logits_PMA, sizes)
    change_PM = of_actions(logp_H, rows.actions_PMH) - rows.logprobs_PM
    ratio_PM = change_PM.exp()
    # min(r A, clip(r) A) has a gradient where the clip does not bind.
    bound_PM = torch.where(rows.advantages_PM >= 0, 1.0 + weights.clip, 1.0 - weights.clip)
    free_PM = (ratio_PM - bound_PM) * rows.advantages_PM <= 0
    push_PM = ratio_PM * rows.advantages_PM * free_PM / -m
    entropy, grads = torch.zeros_like(ratio_PM), list[Tensor]()
    for h, logp in enumerate(logp_H):
        chance = logp.exp()
        own = -(chance * logp).sum(-1)
        entropy += own
        grad = chance * ((logp + own[..., None]) * (weights.entropy / m) - push_PM[..., None])
        grads.append(grad.scatter_add_(-1, rows.actions_PMH[..., h, None], push_PM[..., None]))
    sums = torch.stack([entropy.sum(), (ratio_PM - 1 - change_PM).sum(), (~free_PM).sum()])
    return torch.cat(grads, -1), sums


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
