"""What this process may use of its machine, and which others were started together with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from orchestry.core.errors import ConfigError


def cores() -> int:
    """Whatever else runs on them: the number of a model's threads decides the last bits of what it
    computes, so the same run must find the same number.

    On cores that others use, too, fewer threads may be faster, since a model's threads wait for
    each other: there `learn.threads` says how many.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that were started together; by default there is no other."""

    processes: int = 1
    rank: int = 0
    """Process 0 is the run; the others follow it."""
    local_processes: int = 1
    """Of this machine."""
    local_rank: int = 0
    """Among those of this machine."""


def launched(environ: Mapping[str, str] = os.environ) -> Launch:
    """As the launcher's environment variables have it; raises ConfigError where they are none."""
    processes = _number(environ, "WORLD_SIZE", 1)
    if processes == 1:
        return Launch()
    return Launch(
        processes=processes,
        rank=_number(environ, "RANK", 0),
        local_processes=_number(environ, "LOCAL_WORLD_SIZE", 1),
        local_rank=_number(environ, "LOCAL_RANK", 0),
    )


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = environ.get(name, str(least))
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"the environment variable {name} is {text!r}, and a launcher of processes sets it to "
            f"a number from {least} on: unset it, or start with `accelerate launch`"
        )
    return int(text)
