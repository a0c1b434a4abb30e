"""Attention masks of our own, and the models that they hold for."""

from __future__ import annotations

from typing import Any

import torch

from orchestry.core.errors import ConfigError

FULL = "full_attention"
SLIDING = "sliding_attention"


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where attention is allowed, the dtype's least number elsewhere: what is added to scores.

    Unlike a boolean mask it serves both of transformers' implementations, sdpa and eager.
    """
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """The same mask with rows that begin at multiples of 8 numbers, as kernels on a GPU want them:
    else each layer makes itself such a copy."""
    width = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, -width % 8))[..., :width]


def check_attention(model: Any, length: int) -> None:
    """Refuses a model whose layers would not attend as our masks say in a row of `length` tokens.

    Raises ConfigError: layers without attention, or a sliding window shorter than the row.
    """
    config = model.config
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING})
    if others:
        raise ConfigError(
            f"local: {config.model_type} has layers of type {', '.join(others)}, and only full "
            "attention is supported: choose another model"
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and length > window:
        raise ConfigError(
            f"local: {config.model_type} attends within a window of {window} tokens, and a row of "
            f"{length} was asked for: shorten prompts or max_tokens, or choose another model"
        )
