"""How busy a run's GPU is: for TensorBoard and W&B, and never a reason for a run to end."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from threading import Event, Thread
from typing import Any

from orchestry.core.errors import reason

EVERY_S = 1.0
"""Seconds between two looks; the driver averages over less than that."""
Look = Callable[[], dict[str, float]]


class GpuWatch:
    """Looks every second, in a thread of its own, until the end of `with`. `look` gives figures, or
    raises: then `note` is told once, and nothing more is looked at."""

    def __init__(self, look: Look | None, note: Callable[[str], None]) -> None:
        """Without a `look` there are no figures."""
        self._look, self._note = look, note
        self._seen = list[dict[str, float]]()
        self._failure: Exception | None = None
        self._over = Event()
        self._thread = Thread(target=self._watch, name="gpu", daemon=True)

    def __enter__(self) -> GpuWatch:
        if self._look is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._look is not None:
            self._thread.join()

    def figures(self) -> dict[str, float]:
        """Means of the looks since the last call; {} if there was none."""
        if self._failure is not None:
            self._note(f"the GPU's use is not shown: {reason(self._failure)}")
            self._failure = None
        seen, self._seen = self._seen, []
        return {name: fmean(one[name] for one in seen) for name in seen[0]} if seen else {}

    def _watch(self) -> None:
        assert self._look is not None, "nobody starts this thread without"
        try:
            while not self._over.wait(EVERY_S):
                self._seen.append(self._look())
        except Exception as error:  # a driver's, of whatever kind
            self._failure = error


def gpu_watch(device: str, note: Callable[[str], None]) -> GpuWatch:
    """Watches this device: `use`, the percentage of time in which it computed, by NVML (package
    nvidia-ml-py), and `memory_gb`, by all processes on it, in 1e9 bytes. Nothing on a CPU."""
    import torch

    if torch.device(device).type != "cuda":
        return GpuWatch(None, note)
    uses = _reads_use(torch, device, note)

    def look() -> dict[str, float]:
        free, whole = torch.cuda.mem_get_info(device)
        used = {"memory_gb": (whole - free) / 1e9}
        return {"use": float(torch.cuda.utilization(device)), **used} if uses else used

    return GpuWatch(look, note)


def _reads_use(torch: Any, device: str, note: Callable[[str], None]) -> bool:
    """Whether the driver tells the use; `note` is told why not."""
    try:
        torch.cuda.utilization(device)
    except Exception as error:  # no package, or a part of a GPU (MIG), which has no such figure
        fix = "pip install nvidia-ml-py" if isinstance(error, ImportError) else "memory is shown"
        note(f"the GPU's use is not shown ({reason(error)}): {fix}")
        return False
    return True
