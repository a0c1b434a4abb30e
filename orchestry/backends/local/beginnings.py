"""What an agent's prompts begin with alike, such as rules and examples, computed once.

Drawing computes it once for a batch's prompts, learning once for an update's passes. There the
keys and values are cut from the graph, gather the gradients of all passes, and hand their sum back:
the chain rule, so the gradient is that of whole rows, up to rounding. With `learn.dropout` the mask
of a beginning is one for all prompts behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from orchestry.backends.local.decode import check_attention
from orchestry.backends.local.logprobs import without_gates

if TYPE_CHECKING:
    from orchestry.backends.local.adapters import Adapters
    from orchestry.backends.local.model import Base

_Layer: Any = DynamicLayer  # the library's methods have no types
LEAST = 128
"""Tokens saved that pay for a pass of their own; the gain by fewer is small."""
_SHORTEST_ON_A_CPU = 32
"""Tokens of the shortest such pass: with fewer rows a CPU multiplies much more slowly. On a GPU a
pass that short leaves most of it idle."""
_BY_LENGTH = {"longrope", "dynamic"}
"""Kinds of positions that turn keys by the length of the row."""


def shared_tokens(prompts: Sequence[tuple[int, ...]], model: Any) -> int:
    """How many tokens all these prompts begin with alike, at least one less than each has; 0 where
    a pass of their own does not pay, as with a single prompt, or where a model's keys depend on
    what comes after them."""
    if len(set(prompts)) < 2 or _by_length(model.config):
        return 0
    first, last = min(prompts), max(prompts)  # in order; what these share, all share
    pairs = enumerate(zip(first, last, strict=False))
    alike = next((place for place, (one, other) in pairs if one != other), len(first))
    alike = min(alike, min(map(len, prompts)) - 1)
    shortest = _SHORTEST_ON_A_CPU if model.device.type == "cpu" else LEAST
    return alike if alike >= shortest and alike * (len(set(prompts)) - 1) >= LEAST else 0


def _by_length(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(one for one in rope.values() if isinstance(one, dict))]  # or by kind of layer
    return any(one.get("rope_type") in _BY_LENGTH for one in parts)


class Beginning:
    """Keys and values of one agent's beginning, with the gradient that later passes give them."""

    def __init__(self, ids: tuple[int, ...], made: Sequence[torch.Tensor]) -> None:
        """`made`: keys and values of each layer by turns, (1, heads, tokens, dim)."""
        self.ids = ids
        """Empty where nothing is shared."""
        self._made = made
        # At least float32: sums over many passes lose digits in half precision.
        self._leaves = [
            states.detach()
            .to(torch.promote_types(states.dtype, torch.float32))
            .requires_grad_(states.requires_grad)
            for states in made
        ]

    @classmethod
    def of(
        cls, prompts: Sequence[tuple[int, ...]], base: Base, adapters: Adapters, agent_index: int
    ) -> Beginning:
        """What all these prompts of an agent begin with, computed where that pays. Raises
        ConfigError for a model without full attention."""
        model: Any = base.model
        ids = prompts[0][: shared_tokens(prompts, model)] if prompts else ()
        if not ids:
            return cls((), ())
        check_attention(model, len(ids))
        filled: Any = Cache(layer_class_to_replicate=_Layer)
        with adapters.rows([agent_index]), without_gates():
            model.get_decoder()(
                input_ids=torch.tensor([ids], device=model.device), cache=filled, use_cache=True
            )
        return cls(
            ids, [states for layer in filled.layers for states in (layer.keys, layer.values)]
        )

    def cache(self, rows: int) -> Cache:
        """For a pass of so many rows, each behind this beginning."""
        states = [
            leaf.to(made.dtype).expand(rows, -1, -1, -1)
            for leaf, made in zip(self._leaves, self._made, strict=True)
        ]
        return Cache(layers=[_layer(*pair) for pair in zip(states[::2], states[1::2], strict=True)])

    @contextmanager
    def learned(self) -> Iterator[None]:
        """Passes and their backward passes come within; at the end the weights get the gradient of
        what they share. Raises RuntimeError if a backward pass is missing."""
        yield
        pairs = zip(self._made, self._leaves, strict=True)
        learnt = [(made, leaf.grad) for made, leaf in pairs if leaf.requires_grad]
        grads = [grad.to(made.dtype) for made, grad in learnt if grad is not None]
        if len(grads) < len(learnt):
            raise RuntimeError("the backward pass of each pass must come before this ends")
        torch.autograd.backward([made for made, _ in learnt], grads)


def _layer(keys: torch.Tensor, values: torch.Tensor) -> Any:
    made = _Layer()
    made.lazy_initialization(keys, values)
    made.keys, made.values = keys, values
    return made
