"""Readers that leave and consoles that can't be written: the run's own code stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import FAKE, CommandLine

RUN = (sys.executable, "-m", "orchestry", "run", *map(str, FAKE), "--run-dir", "run")


@pytest.mark.parametrize("extra", [(), ("--json",), ("--show-best", "--json"), ("--dry-run",)])
@pytest.mark.slow
def test_a_reader_that_leaves_changes_no_code(cli: CommandLine, extra: tuple[str, ...]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run([*RUN, *extra], stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write_end)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_run_cut_at_its_budget_keeps_its_code_without_a_reader(cli: CommandLine) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    tight = ("--set", "prices.fake-1.input=1", "--set", "prices.fake-1.output=5", "--budget=0.001")
    try:
        done = subprocess.run([*RUN, *tight], stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write_end)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("extra", [(), ("--verbose",)])
@pytest.mark.slow
def test_a_stderr_that_cannot_be_written_fails_no_run(
    cli: CommandLine, extra: tuple[str, ...]
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*RUN, *extra], stdout=subprocess.PIPE, stderr=full, timeout=60)
    assert done.returncode == 0
    assert b"words: done" in done.stdout
    assert json.loads(Path("run/summary.json").read_text())["stopped"] == "done"


def test_an_error_keeps_its_code_though_nobody_can_read_it(cli: CommandLine) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*RUN, "--episodes", "0"], stderr=full, timeout=60)
    assert done.returncode == 2


def test_a_full_stdout_is_a_fault(cli: CommandLine) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*RUN, "--json"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert b"can't be written" in done.stderr


@pytest.mark.parametrize("stream", [1, 2])
def test_a_closed_stream_fails_no_command(stream: int, tmp_path: Path) -> None:
    shell = f'exec "$0" -m orchestry models list {stream}>&-'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
