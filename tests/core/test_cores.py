"""How many threads a model may take, on a machine that others use too."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestry.core.cores import cores


@contextmanager
def busy() -> Iterator[None]:
    """Every core of this process has other work too."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores())
    ]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_the_number_does_not_depend_on_the_load() -> None:
    idle = cores()
    with busy():
        assert cores() == idle


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are allotted on Linux")
def test_cores_that_are_not_allotted_to_the_process_do_not_count() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from orchestry.core.cores import cores; print(cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
