"""What the benchmark of exactness compares, on a tiny model and a CPU."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("bitsandbytes")

from benchmarks.page import SECTIONS
from benchmarks.peers import gpu_exact

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_float32_is_exact_and_four_bits_are_what_they_stand_for() -> None:
    text = gpu_exact.report(["tiny"], 8)
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in text.splitlines()}
    assert rows["float32"][1] == "16 of 16"
    assert max(map(float, re.findall(r"[\d.]+e-\d+", " ".join(rows["float32"])))) < 1e-4
    beside, own = (
        "nf4, computed in bfloat16",
        "the same, beside the float32 that its bits stand for",
    )
    assert float(rows[own][0]) < 0.2 < float(rows[beside][0])
    assert "gpu_exact" in SECTIONS
