"""Out of memory: recognises the errors, frees reserved memory, and needs less of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError

from orchestry.core.errors import ConfigError, LearnError, reason

if TYPE_CHECKING:
    from orchestry.backends.local.model import Base

ResultT = TypeVar("ResultT")

_TEXTS = (
    "out of memory",  # the CUDA driver's own word, beside torch's error
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "ALLOC_FAILED",
)


SMALLEST = 64
"""A micro-batch of this many tokens is not halved further."""


class MicroBatches:
    """Tokens per pass; halved when memory runs out."""

    def __init__(self, tokens: int, warn: Callable[[str], None]) -> None:
        self.tokens, self._warn = tokens, warn

    def run(
        self, work: Callable[[int], ResultT], undo: Callable[[], None] = lambda: None
    ) -> ResultT:
        """The result of `work` with that many tokens per pass; if they don't fit, it is undone and
        repeated with half. Raises LearnError if even one answer does not fit."""
        while True:
            try:
                return work(self.tokens)
            except Exception as error:
                undo()
                if not out_of_memory(error):
                    raise
                why = reason(error)
            # Outside the except, because the error keeps all computed tensors alive.
            self._halve(why)

    def _halve(self, why: str) -> None:
        release()
        if self.tokens <= SMALLEST:
            raise LearnError(
                f"one answer of an update does not fit into memory ({why}): resume with --set "
                "learn.gradient_checkpointing=true, or begin another run with less "
                "sampling.max_tokens, a smaller base or learn.quantize=nf4"
            )
        self.tokens //= 2
        self._warn(f"out of memory: it begins again with learn.micro_tokens={self.tokens}")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means out of memory: CUDA has its own error, the CPU and cuBLAS a
    RuntimeError, mapped files the system's error."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    told = isinstance(error, RuntimeError | OSError | SafetensorError)
    return told and any(text.lower() in str(error).lower() for text in _TEXTS)


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Raises ConfigError with advice if memory runs out while `what` is loaded."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ConfigError(
            f"{what} do not fit into memory ({reason(error)}): free some, or choose a smaller "
            "base, learn.dtype=bfloat16 or learn.quantize=nf4"
        ) from None


def checkpoint_layers(base: Base) -> None:
    """From now on keeps little of each layer, and computes it again in the backward pass.

    Raises ConfigError for a model that can't.
    """
    model: Any = base.model  # whose methods transformers leaves untyped
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"learn.gradient_checkpointing: {base.name} has no layers that can be computed again: "
            "set it false, or choose another base"
        )
    model.activation_checkpointing_enable()


def release() -> None:
    """Frees the memory of failed computations."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
