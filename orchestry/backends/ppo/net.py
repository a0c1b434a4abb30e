"""Small networks, several side by side, with gradients written out.

At this size autograd's bookkeeping takes longer than the numbers. Tests hold the gradients against
it. Shapes: P networks, M rows for each, I inputs, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestry.backends.ppo import kernels


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each layer's numbers lie in a vector of all parameters of one network."""

    widths: tuple[int, ...]
    """Inputs, hidden layers, outputs."""

    @property
    def size(self) -> int:
        """Numbers of one network."""
        return sum((i + 1) * o for i, o in zip(self.widths, self.widths[1:], strict=False))

    def layers(self, flat_PW: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weight (P, I, O) and bias (P, 1, O) of each layer, as views."""
        found, first = [], 0
        for i, o in zip(self.widths, self.widths[1:], strict=False):
            weight = flat_PW[:, first : first + i * o].view(-1, i, o)
            first += i * o
            found.append((weight, flat_PW[:, None, first : first + o]))
            first += o
        return found

    def fill(self, flat_PW: Tensor, gain: float, generator: torch.Generator) -> None:
        """Orthogonal weights with gain sqrt(2), `gain` in the last layer; biases 0 (Andrychowicz et
        al., arXiv 2006.05990; Huang et al., "The 37 implementation details of PPO", 2022,
        detail 2)."""
        flat_PW.zero_()
        layers = self.layers(flat_PW)
        for number, (weight, _) in enumerate(layers):
            own = gain if number == len(layers) - 1 else math.sqrt(2)
            for one in weight:
                drawn = torch.empty(one.shape)
                torch.nn.init.orthogonal_(drawn, own, generator)
                one.copy_(drawn)


def forward(layers: Sequence[tuple[Tensor, Tensor]], x_PMI: Tensor) -> list[Tensor]:
    """The input, each hidden layer after tanh, and the output (P, M, O)."""
    found = [x_PMI]
    for number, (weight, bias) in enumerate(layers):
        # `baddbmm` would write the bias into every row first; tanh adds it while it is there.
        out = torch.bmm(found[-1], weight)
        found.append(out.add_(bias) if number == len(layers) - 1 else _tanh_(out, bias))
    return found


def _tanh_(x_PMO: Tensor, bias: Tensor) -> Tensor:
    """tanh(x + bias) in place; bias (P, 1, O)."""
    if x_PMO.device.type != "cpu" or x_PMO.dtype != torch.float32:
        return x_PMO.add_(bias).tanh_()
    for x_MO, own in zip(x_PMO.numpy(), bias.numpy(), strict=True):
        kernels.tanh_(x_MO, own[0])
    return x_PMO


def backward(
    layers: Sequence[tuple[Tensor, Tensor]],
    grads: Sequence[tuple[Tensor, Tensor]],
    seen: Sequence[Tensor],
    grad_PMO: Tensor,
) -> None:
    """Writes the gradient of each weight and bias into `grads`, given `forward`'s result and the
    gradient of the output."""
    for number in reversed(range(len(layers))):
        weight, (weight_grad, bias_grad) = layers[number][0], grads[number]
        if grad_PMO.shape[2] < seen[number].shape[2]:  # products are fast where rows are short
            weight_grad.copy_((grad_PMO.mT @ seen[number]).mT)
        else:
            torch.bmm(seen[number].mT, grad_PMO, out=weight_grad)
        bias_grad.copy_(grad_PMO.sum(1, keepdim=True))
        if number:
            grad_PMO = grad_PMO @ weight.mT
            torch.ops.aten.tanh_backward.grad_input(grad_PMO, seen[number], grad_input=grad_PMO)
