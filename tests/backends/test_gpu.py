"""How busy a GPU is: means of looks, and no trouble without a GPU or a driver that tells."""

from __future__ import annotations

from threading import Event

import pytest

from orchestry.backends import gpu
from orchestry.backends.gpu import GpuWatch, gpu_watch


def test_a_cpu_has_no_figures() -> None:
    with gpu_watch("cpu", pytest.fail) as watch:
        assert watch.figures() == {}


def test_figures_are_means_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "EVERY_S", 0.001)
    looks, seen = iter([70.0, 90.0]), Event()

    def look() -> dict[str, float]:
        use = next(looks, None)
        if use is None:
            seen.set()
            raise RuntimeError("the driver left")
        return {"use": use, "memory_gb": use / 10}

    notes = list[str]()
    with GpuWatch(look, notes.append) as watch:
        assert seen.wait(30)
    assert watch.figures() == {"use": 80.0, "memory_gb": 8.0}
    assert watch.figures() == {}
    assert notes == ["the GPU's use is not shown: the driver left"]
