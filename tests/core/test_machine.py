"""Cores do not depend on the load; what a launcher's variables say, and who may not be launched."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestry.backends import open_backend
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.machine import (
    Launch,
    computes_bfloat16,
    cores,
    lacks_bfloat16,
    launched,
    processor,
)
from orchestry.task.registry import load_task

FLAGS = "processor\t: 0\nflags\t\t: fpu avx2 {}\n"
SECOND = {"WORLD_SIZE": "4", "RANK": "1", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}


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
    code += "from orchestry.core.machine import cores; print(cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_process_knows_its_place() -> None:
    assert launched(SECOND) == Launch(processes=4, rank=1, local_processes=2, local_rank=1)


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"RANK": "3"}])
def test_one_process_is_alone(environ: dict[str, str]) -> None:
    assert launched(environ) == Launch()


@pytest.mark.parametrize("size", ["", "two", "0", "-1", "2.0"])
def test_nonsense_is_refused(size: str) -> None:
    with pytest.raises(ConfigError, match=f"WORLD_SIZE is '{size}'.*: unset it, or start with"):
        launched({"WORLD_SIZE": size})


def test_other_backends_take_one_process() -> None:
    config = resolve([], ["backend=api", "provider.name=fake"])
    task = load_task(config.task, config.task_path, config.weights, config.options)
    with pytest.raises(ConfigError, match="backend api takes one process, and 4 were asked for"):
        open_backend(config, task, SECOND)


@pytest.mark.parametrize("words", [("tasks", "list"), ("run", "--dry-run"), ("nonsense",), ()])
def test_another_process_than_the_first_says_nothing(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestry", *words],
        env={**os.environ, **SECOND},
        cwd=tmp_path,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "computes", "lacks"),
    [
        (FLAGS.format("avx512f"), False, True),
        (FLAGS.format("avx512_bf16"), True, False),
        (FLAGS.format("amx_bf16"), True, False),
        ("Features\t: fp asimd\n", False, False),  # not an x86
    ],
)
def test_a_processor_says_whether_it_computes_bfloat16(
    tmp_path: Path, text: str, computes: bool, lacks: bool
) -> None:
    table = tmp_path / "cpuinfo"
    table.write_text(text)
    assert (computes_bfloat16(table), lacks_bfloat16(table)) == (computes, lacks)
    assert not computes_bfloat16(tmp_path / "none")
    assert not lacks_bfloat16(tmp_path / "none")


def test_the_processor_is_named_as_the_system_names_it(tmp_path: Path) -> None:
    table = tmp_path / "cpuinfo"
    table.write_text("processor\t: 0\nmodel name\t: AMD  EPYC 7B13\nmodel name\t: another\n")
    assert processor(table) == "AMD EPYC 7B13"
    table.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert processor(table) == processor(tmp_path / "none") == platform.machine()
