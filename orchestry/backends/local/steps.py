"""A decoding step: the logits after one more token per row, over keys and values that are kept.

`Growing` computes with as many keys as there are tokens, which is least work: for a CPU. `Fixed`
keeps every tensor in its place and shape, so that a GPU can record a step's kernels once and repeat
them as a CUDA graph: launched one by one from Python, a small model's many small kernels take
longer to launch than to compute.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from orchestry.backends.local.decode import additive, aligned, next_logits
from orchestry.backends.local.memory import out_of_memory, release
from orchestry.core.errors import reason

ROOM = 256
"""Tokens that `Fixed` makes room for at a time."""
Compute = Callable[[], torch.Tensor]
Recording = tuple[Any, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that are decoded, in a cache that is padded on the left."""

    length_R: torch.Tensor
    """Tokens of each so far."""
    width: int
    """Of the cache: the longest row's tokens."""
    to_come: int
    """Most tokens that a row can still get."""
    last: int
    """The last position that any row can get to: ended rows go no further, since a model may know
    no position after it."""

    def padding(self, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """(R, columns): hides the padding before each row."""
        pad_R = self.width - self.length_R
        column_K = torch.arange(columns, device=pad_R.device)
        return aligned(additive(column_K >= pad_R[:, None], dtype))


class Growing:
    """Over the cache as it grows, without a copy at every token."""

    def __init__(self, model: Any, cache: Any, rows: Rows) -> None:
        self._model, self._cache, self._last = model, cache, rows.last
        self._length_R, self._width = rows.length_R, rows.width
        # On a CPU attention without a mask expands the keys and values of grouped heads.
        self._mask_RK = rows.padding(rows.width + rows.to_come, model.dtype)

    def __call__(self, ids_R: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after these tokens."""
        self._width += 1
        mask = self._mask_RK[:, None, None, : self._width]
        logits = next_logits(
            self._model, self._cache, ids_R[:, None], self._length_R[:, None], mask
        )
        self._length_R = (self._length_R + 1).clamp(max=self._last)
        return logits


class Fixed:
    """Over a cache with room ahead, whose empty columns are masked."""

    def __init__(self, model: Any, cache: Any, rows: Rows, recorder: Recorder) -> None:
        self._model, self._cache, self._recorder = model, cache, recorder
        self._rows, self._length_R = rows, rows.length_R.clone()
        self._width = self._columns = rows.width
        self._ids_R = torch.zeros_like(rows.length_R)

    def __call__(self, ids_R: torch.Tensor) -> torch.Tensor:
        """The logits (R, V) after these tokens, valid until the next call."""
        if self._width == self._columns:
            self._make_room()
        self._ids_R.copy_(ids_R)
        self._width += 1
        return self._recorded(self._step)

    def _make_room(self) -> None:
        """Moves keys and values, so that the step has to be recorded anew."""
        self._columns = min(self._width + ROOM, self._rows.width + self._rows.to_come)
        self._place_1 = torch.full_like(self._ids_R[:1], self._width)
        for layer in self._cache.layers:
            layer.fix(self._place_1, self._columns)
        dtype = self._model.dtype
        self._mask_RK = self._rows.padding(self._columns, dtype)
        self._mask_RK[:, self._width :] = torch.finfo(dtype).min
        self._recorded = Recorded(self._recorder)

    def _step(self) -> torch.Tensor:
        self._mask_RK.index_fill_(-1, self._place_1, 0.0)
        ids, positions, mask = self._ids_R[:, None], self._length_R[:, None], self._mask_RK
        logits = next_logits(self._model, self._cache, ids, positions, mask[:, None, None])
        self._place_1 += 1
        self._length_R.add_(1).clamp_(max=self._rows.last)
        return logits


class Recorder:
    """Makes recordings. Where a step can't be recorded (what it launches depends on numbers that
    Python waits for, or there is no memory for it), it warns once, and steps are computed each
    time."""

    def __init__(self, device: torch.device, warn: Callable[[str], None]) -> None:
        self._device, self._warn = device, warn
        self.on = device.type == "cuda"

    def first(self, compute: Compute) -> torch.Tensor:
        """Computes a step that is to be recorded next.

        It makes what is made once: kernels' workspaces, adapters in the base's precision. What
        Python waits for raises here: a recording that fails of it would harm torch's allocator.
        """
        try:
            with self._beside(), _without_waits():
                return compute()
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            self._give_up(error)
        return compute()

    def record(self, compute: Compute) -> Recording | None:
        """A CUDA graph and the tensor that it fills; None where it failed."""
        for again in (True, False):
            try:
                with self._beside():
                    return _recorded(compute)
            except RuntimeError as error:
                if not (again and out_of_memory(error)):
                    self._give_up(error)
                    break
            release()  # which torch can't do while it records
        return None

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """On a stream beside the current one, as recordings need it; each waits for the other."""
        cuda: Any = torch.cuda  # whose streams have no types
        before = cuda.current_stream(self._device)
        self._stream.wait_stream(before)
        try:
            with cuda.stream(self._stream):
                yield
        finally:
            before.wait_stream(self._stream)

    @cached_property
    def _stream(self) -> Any:
        cuda: Any = torch.cuda
        return cuda.Stream(self._device)

    def _give_up(self, error: RuntimeError) -> None:
        self.on = False
        self._warn(
            "answers are drawn more slowly, since decoding steps can't be recorded as a CUDA graph "
            f"here: {reason(error)}"
        )


def _recorded(compute: Compute) -> Recording:
    graph: Any = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        logits = compute()
    except BaseException:
        with suppress(RuntimeError):  # says only that it failed
            graph.capture_end()
        raise
    graph.capture_end()
    return graph, logits


@contextmanager
def _without_waits() -> Iterator[None]:
    """Raises RuntimeError where Python would wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():  # torch calls this mode a prototype, once
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Recorded:
    """What one function computes on fixed tensors; from the second call on by its recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recording: Recording | None = None
        self._called = False

    def __call__(self, compute: Compute) -> torch.Tensor:
        """Is given the function each time: one that it kept would keep its tensors alive."""
        if self._recording is None and self._recorder.on:
            if not self._called:
                self._called = True
                return self._recorder.first(compute)
            self._recording = self._recorder.record(compute)
        if self._recording is None:
            return compute()
        graph, logits = self._recording
        graph.replay()
        return logits
