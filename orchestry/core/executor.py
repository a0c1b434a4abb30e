"""Where processes are started: on this machine, or on a Ray cluster (config key `executor`).

What goes out is work that another process can repeat: sandbox runs, a sweep's runs, the other
processes of a launch. Journal and ledger keep one writer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, Self

from pydantic import AfterValidator

from orchestry.core.errors import OrchestryError
from orchestry.core.machine import cores
from orchestry.core.sandboxed import Limits, Sandbox

_ON = re.compile(r"local|processes(:[1-9]\d{0,3})?|ray(://[^/\s]+:\d{1,5})?")


class Lost(OrchestryError):
    """The machine or process that held a job is gone; the job can be started again."""


def _known(text: str) -> str:
    if not _ON.fullmatch(text):
        raise ValueError("give local, processes, processes:N, ray or ray://HOST:PORT")
    return text


ExecutorName = Annotated[str, AfterValidator(_known)]
"""A value of the config key `executor`."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a process takes of its machine."""

    cpus: int = 1
    gpus: int | None = 0
    """None: one, where the machines have any."""


ONE = Needs()
"""One core."""


class Job(Protocol):
    """A command of ours that was started."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs. Raises Lost."""
        ...

    def wait(self, seconds: float) -> None:
        """Returns when it ends, or after so many seconds."""
        ...

    def interrupt(self) -> None:
        """As Ctrl-C: it ends in order."""
        ...

    def close(self) -> None:
        """Ends it if it still runs, and frees what it took."""
        ...


class Level(Sandbox, Protocol):
    """An open sandbox."""

    level: str
    """The level and its meaning, for manifest and doctor."""


class Executor(Protocol):
    """One of `local`, `processes` and `ray`."""

    def at_once(self, needs: Needs) -> int:
        """How many processes with such needs fit. Raises ConfigError if none does."""
        ...

    def start(self, args: Sequence[str], log: Path, needs: Needs) -> Job:
        """Starts `orchestry ARGS` in this working folder; what it says is added to `log`.

        Raises ConfigError if another machine does not see that folder, or has another version of
        this package.
        """
        ...

    def launch(self, count: int, needs: Needs) -> AbstractContextManager[None]:
        """Within the block, this process is the first of a launch of `count`: RANK, WORLD_SIZE and
        MASTER_ADDR are in its environment, as a launcher would set them. The others end with it.

        Raises ConfigError where none can be started.
        """
        ...

    def sandbox(
        self, limits: Limits, *, allow_unsafe: bool = False
    ) -> AbstractAsyncContextManager[Level]:
        """The sandbox, for `async with`."""
        ...


@dataclass(frozen=True, slots=True)
class On:
    """A value of `executor`, taken apart."""

    kind: str
    """`local`, `processes` or `ray`."""
    address: str = ""
    """Of Ray's head, `ray://HOST:PORT`; '' means the cluster that this machine belongs to."""
    count: int = 1
    """Processes at once on this machine."""

    @classmethod
    def of(cls, text: str) -> Self:
        """From an ExecutorName."""
        kind, _, rest = text.partition(":")
        if kind == "ray":
            return cls(kind, text if rest else "")
        return cls(kind, count=int(rest) if rest else cores() if kind == "processes" else 1)


def environs(hosts: Sequence[str], address: str, port: int) -> list[dict[str, str]]:
    """The environment of each process of a launch, by the machine on which it runs; process 0 is
    reached at `address`."""
    found = list[dict[str, str]]()
    for rank, host in enumerate(hosts):
        place = {
            "RANK": rank,
            "WORLD_SIZE": len(hosts),
            "LOCAL_RANK": [*hosts[:rank]].count(host),
            "LOCAL_WORLD_SIZE": [*hosts].count(host),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }
        found.append({name: str(value) for name, value in place.items()})
    return found
