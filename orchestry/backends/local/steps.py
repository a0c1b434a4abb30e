"""A decoding step: the logits after one more token per row, over keys and values that are kept.

`Growing` computes with as many keys as there are tokens, which is least work: for a CPU. `Fixed`
keeps every tensor in its place and shape, so that a GPU can record a step's kernels once and repeat
them as a CUDA graph: launched one by one from Python, a small model's many small kernels take
longer to launch than to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from orchestry.backends.local.decode import additive
from orchestry.backends.local.memory import out_of_memory
from orchestry.core.errors import reason

ROOM = 256
"""Tokens that `Fixed` makes room for at a time."""
Compute = Callable[[], torch.Tensor]


class Growing:
    """Over the cache as it grows, without a copy at every token."""

    def __init__(
        self, model: Any, cache: Any, length_R: torch.Tensor, width: int, to_come: int
    ) -> None:
        """Rows of `length_R` tokens in a cache of `width`, the longest of them, padded on the left;
        `to_come`: most tokens that one can still get."""
        self._model, self._cache = model, cache
        self._length_R, self._width = length_R, width
        # On a CPU attention without a mask expands the keys and values of grouped heads.
        self._mask_RK = _padding(width - length_R, width + to_come, model.dtype)

    def __call__(self, ids_R: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after these tokens."""
        self._width += 1
        mask_RK = self._mask_RK[:, : self._width]
        logits = _logits(self._model, self._cache, ids_R, self._length_R, mask_RK)
        self._length_R = self._length_R + 1
        return logits


class Fixed:
    """Over a cache with room ahead, whose empty columns are masked."""

    def __init__(
        self,
        model: Any,
        cache: Any,
        length_R: torch.Tensor,
        width: int,
        to_come: int,
        recorder: Recorder,
    ) -> None:
        self._model, self._cache, self._recorder = model, cache, recorder
        self._length_R, self._width = length_R.clone(), width
        self._columns, self._to_come = width, to_come
        self._ids_R = torch.zeros_like(length_R)

    def __call__(self, ids_R: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after these tokens, valid until the next call."""
        if self._width == self._columns:
            self._make_room()
        self._ids_R.copy_(ids_R)
        self._width += 1
        self._to_come -= 1
        return self._recorded(self._step)

    def _make_room(self) -> None:
        """Moves keys and values, so that the step has to be recorded anew."""
        # Kernels on a GPU want rows aligned to 8 numbers.
        self._columns = -(-(self._width + min(max(self._to_come, 1), ROOM)) // 8) * 8
        self._place_1 = torch.full_like(self._ids_R[:1], self._width)
        for layer in self._cache.layers:
            layer.fix(self._place_1, self._columns)
        self._mask_RK = _padding(self._width - self._length_R, self._columns, self._model.dtype)
        self._mask_RK[:, self._width :] = torch.finfo(self._model.dtype).min
        self._recorded = Recorded(self._recorder)

    def _step(self) -> torch.Tensor:
        self._mask_RK.index_fill_(-1, self._place_1, 0.0)
        logits = _logits(self._model, self._cache, self._ids_R, self._length_R, self._mask_RK)
        self._place_1 += 1
        self._length_R += 1
        return logits


class Recorder:
    """Makes recordings. Where a step can't be recorded (what it launches depends on numbers that
    Python has to look at), it warns once, and steps are computed each time."""

    def __init__(self, device: torch.device, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.on = device.type == "cuda"

    @cached_property
    def stream(self) -> Any:
        """Beside the current one: a recording can't be made on that."""
        cuda: Any = torch.cuda  # whose streams have no types
        return cuda.Stream()

    def record(self, compute: Compute) -> tuple[Any, torch.Tensor] | None:
        """A CUDA graph and the tensor that it fills; None where it failed."""
        graph: Any = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                return graph, compute()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            self.on = False
            why = reason(error.__context__ or error)
            self._warn(f"answers are drawn more slowly, since this model can't be recorded: {why}")
            return None


class Recorded:
    """What one function computes on fixed tensors; from the second call on by its recording.

    The first call makes what is made once: kernels' workspaces, adapters in the base's precision.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recording: tuple[Any, torch.Tensor] | None = None
        self._called = False

    def __call__(self, compute: Compute) -> torch.Tensor:
        """Is given the function each time: one that it kept would keep its tensors alive."""
        found = None
        if self._recorder.on and self._recording is None:
            found = self._begun(compute)
        if self._recording is None:
            return compute() if found is None else found
        graph, logits = self._recording
        graph.replay()
        return logits

    def _begun(self, compute: Compute) -> torch.Tensor | None:
        """What the first call computes. The second only records."""
        before, beside = torch.cuda.current_stream(), self._recorder.stream
        beside.wait_stream(before)
        found = None
        with torch.cuda.stream(beside):
            if self._called:
                self._recording = self._recorder.record(compute)
            else:
                self._called, found = True, compute()
        before.wait_stream(beside)
        return found


def _padding(pad_R: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """(R, columns): hides the padding before each row."""
    column_K = torch.arange(columns, device=pad_R.device)
    return additive(column_K >= pad_R[:, None], dtype)


def _logits(
    model: Any,
    cache: Any,
    ids_R: torch.Tensor,
    position_R: torch.Tensor,
    mask_RK: torch.Tensor,
) -> torch.Tensor:
    output = model(
        input_ids=ids_R[:, None],
        attention_mask=mask_RK[:, None, None, :],
        position_ids=position_R[:, None],
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: torch.Tensor = output.logits[:, -1]
    return logits
