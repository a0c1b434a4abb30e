"""The benchmark of several processes times runs of one process and of two."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.ppo_processes import played
from orchestry.store.run import load_run


@pytest.mark.slow
def test_runs_of_one_process_and_of_two_are_timed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for count in (1, 2):
        folder = tmp_path / str(count)
        assert played(folder, count, 4, "1k") > 0
        assert load_run(folder).summary.learning["steps"] == 1024
