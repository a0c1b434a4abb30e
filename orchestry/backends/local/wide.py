"""Products with large layers on a CPU, by oneDNN's kernel in place of BLAS.

A decoding step multiplies few rows by every weight. There BLAS first rearranges the weight, each
time; oneDNN multiplies it as it lies, so no second copy is kept. At 32 rows that takes 0.5 to 0.9
of the time for the output layer and gates (python -m benchmarks.peers.coder_speed). In bfloat16
torch copies the weight once per row where the rows don't lie side by side, as after a prompt's last
token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from orchestry.core.machine import computes_bfloat16

LEAST = 1 << 19
"""Numbers in a weight that is worth it."""
_KERNELS: Any = torch.ops.mkldnn
_Function: Any = torch.autograd.Function  # its methods have no types


class _Product(_Function):  # type: ignore[misc]
    """x W^T of a frozen weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        product: Tensor = _KERNELS._linear_pointwise(x, weight, None, "none", [], "")
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return grad @ weight, None


class WideLinear(nn.Linear):
    """A large linear layer without bias, on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.requires_grad:
            return super().forward(input)
        product: Tensor = _Product.apply(input, self.weight)
        return product


def widen(model: nn.Module) -> None:
    """Turns a frozen model's layers that gain into WideLinear, in place, where torch has the
    kernel."""
    if not hasattr(_KERNELS, "_linear_pointwise"):
        return
    for module in model.modules():
        if type(module) is nn.Linear and _gains(module):
            module.__class__ = WideLinear


def _gains(layer: nn.Linear) -> bool:
    weight = layer.weight
    if weight.device.type != "cpu" or layer.bias is not None or weight.numel() < LEAST:
        return False
    if weight.dtype == torch.bfloat16:
        return computes_bfloat16()
    return weight.dtype == torch.float32 and layer.out_features > layer.in_features
