"""Memory that runs out: how the device says so, and giving back what is held in reserve."""

from __future__ import annotations

import gc

import torch

_TEXTS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Whether less at a time may succeed: CUDA has an error for it, the CPU and cuBLAS a
    RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def release() -> None:
    """Gives back what failed computations held, so that the next one finds room."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
