"""How many threads a model may take, on a machine that others use too."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from orchestry.core.cores import busy_cores, idle_cores

CORES = os.cpu_count() or 1


def test_busy_cores_are_no_idle_ones() -> None:
    assert 0.0 <= busy_cores() <= CORES
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(CORES)]
    try:
        time.sleep(0.3)
        assert busy_cores() > 0.6 * CORES
        assert idle_cores() == 1
    finally:
        for process in spinning:
            process.kill()
            process.wait()
