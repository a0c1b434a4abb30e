"""Memory that runs out: how the device says so, and giving back what is held in reserve."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from safetensors import SafetensorError

from orchestry.core.errors import ConfigError, LearnError, reason

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
"""Tokens of a micro-batch that is halved no more."""


class MicroBatches:
    """How many tokens go into one pass; they are halved where memory runs out."""

    def __init__(self, tokens: int, warn: Callable[[str], None]) -> None:
        self.tokens, self._warn = tokens, warn

    def run(
        self, work: Callable[[int], ResultT], undo: Callable[[], None] = lambda: None
    ) -> ResultT:
        """The result of `work` with so many tokens per pass; where they don't fit, it is undone
        and begun again. Raises LearnError where one answer is too many already."""
        while True:
            try:
                return work(self.tokens)
            except Exception as error:
                undo()
                if not out_of_memory(error):
                    raise
                why = reason(error)
            self._halve(why)  # out here, since the error holds on to all that was computed

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
    """Whether less at a time may succeed: CUDA has an error for it, the CPU and cuBLAS a
    RuntimeError, and files that are mapped the system's word."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    told = isinstance(error, RuntimeError | OSError | SafetensorError)
    return told and any(text.lower() in str(error).lower() for text in _TEXTS)


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Raises ConfigError with advice where memory runs out within; `what` is loaded there."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise ConfigError(
            f"{what} do not fit into memory ({reason(error)}): free some, or choose a smaller "
            "base, learn.dtype=bfloat16 or learn.quantize=nf4"
        ) from None


def release() -> None:
    """Gives back what failed computations held, so that the next one finds room."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
