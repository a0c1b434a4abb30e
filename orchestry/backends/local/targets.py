"""Which linear layers of a base can get an adapter per row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from orchestry.backends.local.model import Base
from orchestry.core.errors import ConfigError

ALL_LINEAR = "all-linear"
"""As targets: every linear layer except the output layer, as in peft, and except layers that meet
the tokens of all rows mixed."""


def linear_layers(base: Base) -> set[str]:
    """Last parts of the names of the base's linear layers that can get an adapter.

    Not the output layer: the loss is computed from its weights alone. Nor layers that meet the
    tokens of all rows mixed, so that no row's adapter can be told there. Nor, beside fused experts,
    other layers of the feed-forward part: peft takes their adapters for those of the experts.
    """
    model: Any = base.model
    head = model.get_output_embeddings()
    known = getattr(model, "_orchestry_mixed", None)
    mixed = _mixed(model) if known is None else known
    object.__setattr__(model, "_orchestry_mixed", mixed)
    experts = any(one.dim() == 3 and "expert" in name for name, one in model.named_parameters())
    found: dict[str, set[bool]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not head:
            beside = experts and "attn" not in name and "attention" not in name
            found.setdefault(name.rpartition(".")[2], set()).add(beside or name in mixed)
    # peft can't tell a layer that is named by its number from a block of layers.
    return {name for name, faults in found.items() if True not in faults and not name.isdigit()}


def all_linear_layers(base: Base) -> set[str]:
    """The same names, also of layers that can't get one; not the output layer."""
    model: Any = base.model
    head = model.get_output_embeddings()
    linear = (n for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head)
    return {name.rpartition(".")[2] for name in linear}


def _mixed(model: Any) -> frozenset[str]:
    """The linear layers that two rows of three tokens do not reach as rows, if they reach them."""
    shape, found = (2, 3), set[str]()

    def look(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not inputs or inputs[0].dim() < 3 or inputs[0].shape[0] != shape[0]:
            found.add(name)

    hooks = [
        module.register_forward_pre_hook(partial(look, name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    ids = torch.arange(shape[0] * shape[1], device=model.device).view(shape)
    try:
        with torch.no_grad():
            model.get_decoder()(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return frozenset(found)


def check_targets(base: Base, targets: Sequence[str], layers: set[str]) -> None:
    """Raises ConfigError if the base lacks one of them, or it can't get an adapter."""
    if absent := sorted(set(targets) - layers):
        raise ConfigError(
            f"the base {base.name} has no linear layer {', '.join(absent)} that can get an adapter:"
            f" set learn.targets to names among {', '.join(sorted(layers)) or 'none'}, or to "
            f"{ALL_LINEAR}"
        )
