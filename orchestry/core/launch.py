"""What a launcher of several processes (`accelerate launch`, torchrun) told this one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from orchestry.core.errors import ConfigError


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
