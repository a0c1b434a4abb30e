"""The memory benchmark: a case in its own process, and the rows of the GPU that was measured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.guarantees.memory import CASES, GOAL, GPU_WAYS, estimated, on_gpus, play, row


def test_the_estimate_is_near_what_the_page_says_of_a_gpu() -> None:
    rows = on_gpus()
    assert len(rows) == len(GPU_WAYS)
    for _, _, off in rows:
        assert abs(int(off.strip("*%"))) <= 100 * GOAL


@pytest.mark.slow
def test_a_case_is_measured_in_a_process_of_its_own() -> None:
    found = play(0)
    assert set(found) == {"drawing", "learning"}
    cells, off = row(CASES[0], found)
    assert abs(off) < 0.5
    assert len(cells) == 6
    assert min(estimated(CASES[0]).values()) > 5e8  # the weights alone
