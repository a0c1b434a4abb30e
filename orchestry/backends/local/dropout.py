"""A base without randomness of its own."""

from __future__ import annotations

from typing import Any


def never_drops(model: Any) -> None:
    """Switches off the base's own dropout, and the noise in the choice of its experts: they would
    make the learning policy differ from the drawing one, with masks from an unknown seed."""
    from torch.nn.modules.dropout import _DropoutNd

    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        if any("jitter" in name for name in vars(module)):
            module.train = _stays  # its rate is used in evaluation too: 0 would be another model
        for place in (module, getattr(module, "config", module)):
            rates = {name: rate for name, rate in vars(place).items() if "drop" in name}
            for name in (name for name, rate in rates.items() if isinstance(rate, float)):
                setattr(place, name, 0.0)


def _stays(mode: bool = True) -> None:
    """In place of a module's `train`: it stays in evaluation mode."""
