"""Drawing one token a row: temperature, then top-p, by the row's own uniform number."""

from __future__ import annotations

import torch

from orchestry.backends.local.finite import NotFiniteError

HEAD = 256
"""Tokens looked at first. Sorting a whole vocabulary costs 20 times as much, and is needed only
where these do not reach top-p."""


def pick(
    logits_RV: torch.Tensor,  # noqa: N803
    temperature_R: torch.Tensor,
    top_p_R: torch.Tensor,
    uniform_R: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids_R, logprobs_R): the token that each uniform in [0, 1) falls on.

    The inverse of the cumulative distribution softmax(logits / temperature), tokens in falling
    order of probability, cut to the smallest set that holds at least top_p. The log-probabilities,
    in nats, are of softmax(logits / temperature) BEFORE that cut: what a gradient can be taken of.
    Temperature 0 takes the likeliest token, with log-probability 0.

    Raises NotFiniteError where the logits are not finite.
    """
    greedy_R = temperature_R == 0
    scaled_RV = logits_RV / temperature_R.masked_fill(greedy_R, 1.0)[:, None]  # noqa: N806
    total_R = scaled_RV.logsumexp(-1)
    top_p_R = top_p_R.masked_fill(greedy_R, 1.0)
    uniform_R = uniform_R.masked_fill(greedy_R, 0.0)
    head = scaled_RV.topk(min(HEAD, scaled_RV.shape[-1]))
    ids_R, reached_R = _invert(head.values, head.indices, total_R, top_p_R, uniform_R)
    # `reached` is false for NaN too, so that finite logits cost no check of their own.
    short = (~reached_R).nonzero().squeeze(-1)
    if len(short) > 0:
        if not bool(total_R.isfinite().all()):
            raise NotFiniteError("the model's logits are not finite, so nothing can be drawn")
        full = scaled_RV[short].sort(descending=True)
        ids_R[short], _ = _invert(
            full.values, full.indices, total_R[short], top_p_R[short], uniform_R[short]
        )
    logprobs_R = scaled_RV.gather(-1, ids_R[:, None]).squeeze(-1) - total_R
    return ids_R, logprobs_R.masked_fill(greedy_R, 0.0)


def _invert(
    scaled_RK: torch.Tensor,  # noqa: N803
    ids_RK: torch.Tensor,  # noqa: N803
    total_R: torch.Tensor,
    top_p_R: torch.Tensor,
    uniform_R: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids_R, whether these K tokens sufficed to tell), the K sorted by falling probability."""
    chance_RK = (scaled_RK - total_R[:, None]).exp()  # noqa: N806
    sum_RK = chance_RK.cumsum(-1)  # noqa: N806
    cut_R = top_p_R < 1
    # Without a cut the whole mass is 1, and only the tokens up to the uniform number are needed.
    inside_RK = (sum_RK - chance_RK < top_p_R[:, None]) | ~cut_R[:, None]  # noqa: N806
    mass_R = torch.where(cut_R, (chance_RK * inside_RK).sum(-1), 1.0)
    place_R = (sum_RK <= (uniform_R * mass_R)[:, None]).sum(-1)
    # Rounding may put the last sum below the mass; and NaN is inside nothing.
    place_R = place_R.minimum(inside_RK.sum(-1) - 1).clamp(min=0)
    reached_R = sum_RK[:, -1] > torch.where(cut_R, top_p_R, uniform_R)
    return ids_RK.gather(-1, place_R[:, None]).squeeze(-1), reached_R
