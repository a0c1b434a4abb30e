"""The processor, the cores and memory this process may use, and its place in a multi-process
launch."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from orchestry.core.errors import ConfigError


def cores() -> int:
    """All of them count, busy or idle: the number of threads decides the last bits of a model's
    results, so the same run must get the same number.

    On shared cores fewer threads may be faster, because a model's threads wait for each other. Set
    `learn.threads` there.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gb(table: Path = Path("/proc/meminfo")) -> float | None:
    """Memory that a new process could use, in units of 1e9 bytes; None where the system has no such
    table (macOS)."""
    try:
        lines = table.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 / 1e9 if found else None


def processor(table: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, such as "AMD EPYC 7B13 64-Core Processor"; its architecture where the
    system does not say it (macOS, most ARM kernels)."""
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return " ".join(next(named, "").split()) or platform.machine() or "unknown"


def lacks_bfloat16(table: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is an x86 processor without instructions for bfloat16: torch then converts every
    number, and products take several times as long as in float32. False where the system has no
    such table."""
    return bool(_flags(table)) and not computes_bfloat16(table)


def computes_bfloat16(table: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is an x86 processor with instructions for bfloat16."""
    return bool({"avx512_bf16", "amx_bf16"} & _flags(table))


def _flags(table: Path) -> set[str]:
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next(({*line.split()} for line in lines if line.startswith("flags")), set())


AGAIN_S = 10.0
"""Seconds between two interrupts of a process whose parent has ended."""
PARENT = "ORCHESTRY_PARENT"
"""Environment variable: the id of the process with which this one is to end."""


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's place in a launch; by default it is the only one."""

    processes: int = 1
    rank: int = 0
    """Process 0 is the run; the others follow it."""
    local_processes: int = 1
    """Processes on this machine."""
    local_rank: int = 0
    """This process's number on its machine."""


def launched(environ: Mapping[str, str] = os.environ) -> Launch:
    """From the launcher's environment variables; raises ConfigError if they are not numbers."""
    processes = _number(environ, "WORLD_SIZE", 1)
    if processes == 1:
        return Launch()
    return Launch(
        processes=processes,
        rank=_number(environ, "RANK", 0),
        local_processes=_number(environ, "LOCAL_WORLD_SIZE", 1),
        local_rank=_number(environ, "LOCAL_RANK", 0),
    )


def end_with_parent(parent: int) -> None:
    """From now on this process is interrupted, as by Ctrl-C, when `parent` has ended. It hears
    interrupts although its parent may have blocked them, as Ray's workers do."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        while True:  # a library that is being imported may have swallowed one
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(AGAIN_S)

    Thread(target=watch, daemon=True).start()


def check_first(here: Launch) -> None:
    """Raises ConfigError in any process of a launch except the first."""
    if here.rank:
        raise ConfigError(
            f"process {here.rank} of a launch follows process 0 and runs nothing of its own: start "
            "`accelerate launch -m orchestry run`, or call orchestry.backends.launch.follow() in it"
        )


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = environ.get(name, str(least))
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"the environment variable {name} is {text!r}, but must be a whole number of at least "
            f"{least}: unset it, or start with `accelerate launch`"
        )
    return int(text)
