"""How many threads the embedded model takes, on a machine that others use too."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from orchestry.providers.embedded import _busy_cores, _threads

CORES = os.cpu_count() or 1


def test_threads_leave_busy_cores_alone() -> None:
    assert 0.0 <= _busy_cores() <= CORES
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(CORES)]
    try:
        time.sleep(0.3)
        assert _busy_cores() > 0.6 * CORES
        assert _threads() == 1
    finally:
        for process in spinning:
            process.kill()
            process.wait()
