"""Where a model's weights go: the CPU, or the GPU that belongs to this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestry.core.errors import ConfigError, reason
from orchestry.core.launch import Launch, launched

if TYPE_CHECKING:
    import torch


def device_of(device: str = "auto") -> torch.device:
    """`auto`: CUDA where there is one; `cuda`: this process's own among those of a launch.

    Raises ConfigError for a device that is not there.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device '{device}' is none ({reason(error)}): auto, cpu or cuda"
        ) from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device '{device}' is not available: choose auto or cpu")
    return _own_gpu(launched()) if place == torch.device("cuda") else place


def plain_attention() -> None:
    """Leaves attention to the flash and memory-efficient kernels, in all threads.

    cuDNN's, which torch prefers on Hopper, builds a plan for every new shape, so for every token
    drawn, and gives gradients that are NaN for some shapes with a mask (pytorch/pytorch#196678).
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def _own_gpu(here: Launch) -> torch.device:
    """A GPU a process of this machine; alone, whichever CUDA takes."""
    import torch

    if here.processes == 1:
        return torch.device("cuda")
    if here.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"{here.local_processes} processes were launched on this machine, and its GPUs are "
            f"{torch.cuda.device_count()}: launch one process a GPU, or set learn.device=cpu"
        )
    return torch.device("cuda", here.local_rank)
