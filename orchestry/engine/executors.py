"""Processes of this machine, one or several at once; other machines are in engine.cluster."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.executor import ONE, Executor, Job, Level, Needs, On, environs
from orchestry.core.machine import PARENT, launched
from orchestry.core.probe import free_port
from orchestry.core.sandboxed import Limits
from orchestry.sandbox import ForkServers, open_sandbox

COMMAND = (sys.executable, "-m", "orchestry")
END_S = 5.0
"""How long a process has to end before it is killed."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that this process began."""

    environ: Mapping[str, str]
    """Of this process, its first."""
    others: Sequence[Job]

    @property
    def size(self) -> int:
        """All processes, with this one."""
        return 1 + len(self.others)

    def check(self) -> None:
        """Raises ConfigError if one of them has ended."""
        ended = [rank for rank, job in enumerate(self.others, 1) if job.poll() is not None]
        if ended:
            raise ConfigError(
                f"process {ended[0]} of this launch of {self.size} has ended: start Python anew"
            )

    def close(self) -> None:
        """Ends the others."""
        for job in self.others:
            job.close()


_launched: Launched | None = None
"""This process's launch, if it began one."""


class Running:
    """A process of this machine."""

    def __init__(
        self,
        args: Sequence[str],
        log: Path,
        environ: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        """Starts `orchestry ARGS`, in `folder` or where this process is. It has a session of its
        own: what interrupts this process reaches it through `interrupt` alone, once each time."""
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [*COMMAND, *args],
                cwd=folder,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """See Job."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """See Job."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def interrupt(self) -> None:
        """See Job."""
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """See Job."""
        if self._process.poll() is None:
            self._process.terminate()
            self.wait(END_S)
            self._process.kill()
            self._process.wait()


class Here:
    """This machine; `local` starts one process at a time, `processes` several."""

    def __init__(self, on: On) -> None:
        self._on = on

    def at_once(self, needs: Needs) -> int:
        """See Executor."""
        return self._on.count

    def start(self, args: Sequence[str], log: Path, needs: Needs) -> Job:
        """See Executor."""
        return Running(args, log, {})

    @contextmanager
    def launch(self, count: int, needs: Needs) -> Iterator[None]:
        """See Executor."""
        if self._on.kind == "local" and count > 1 and launched().processes == 1:
            raise ConfigError(
                f"ranks={count} are several processes, and executor=local starts none: give "
                "--on processes or --on ray, or start with `accelerate launch`"
            )
        with launching(count, self._started):
            yield

    def _started(self, count: int) -> Launched:
        own, *others = environs(["here"] * count, "127.0.0.1", free_port())
        tied = {PARENT: str(os.getpid())}
        log = Path(os.devnull)
        return Launched(own, [Running(["run"], log, environ | tied) for environ in others])

    def sandbox(self, limits: Limits, *, allow_unsafe: bool = False) -> ForkServers:
        """See Executor."""
        return open_sandbox(limits, allow_unsafe=allow_unsafe)


LOCAL = Here(On("local"))
"""One process of this machine at a time."""


@contextmanager
def launching(count: int, started: Callable[[int], Launched]) -> Iterator[None]:
    """Within the block, this process's environment is that of a launch of `count`. The others are
    started once and stay until this process ends, since it can't join a second launch.

    Raises ConfigError if it belongs to a launch of another size.
    """
    global _launched
    there = _launched.size if _launched else launched().processes
    if count > 1 and there not in (1, count):
        raise ConfigError(
            f"ranks={count}, and this process belongs to a launch of {there}: set ranks={there}, "
            "or start Python anew"
        )
    if count == 1 or (there == count and not _launched):  # alone, or a launcher started us
        yield
        return
    if not _launched:
        _launched = started(count)
        atexit.register(_launched.close)
    _launched.check()
    before = {name: os.environ.get(name) for name in _launched.environ}
    os.environ.update(_launched.environ)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def open_executor(text: str) -> Executor:
    """The executor of a value of the config key `executor`. Raises ConfigError for a cluster that
    can't be reached."""
    on = On.of(text)
    if on.kind != "ray":
        return Here(on)
    from orchestry.engine.cluster import Cluster

    return Cluster(on.address)


def launch_of(config: RunConfig) -> AbstractContextManager[None]:
    """Within the block, the other processes of a run's launch are there. Raises ConfigError as
    `open_executor` and `Executor.launch` do."""
    return open_executor(config.executor).launch(config.ranks, needs_of(config))


@asynccontextmanager
async def placed(config: RunConfig) -> AsyncIterator[Level]:
    """Where a run's work goes: the other processes of its launch are started, and its sandbox is
    open. Raises ConfigError as `open_executor`, `Executor.launch` and the sandbox do."""
    executor, unsafe = open_executor(config.executor), config.allow_unsafe_code
    with executor.launch(config.ranks, needs_of(config)):
        async with executor.sandbox(config.sandbox, allow_unsafe=unsafe) as sandbox:
            yield sandbox


def needs_of(config: RunConfig) -> Needs:
    """What each process of a run takes."""
    if config.backend == "api":
        return ONE
    own = config.learn if config.backend == "local" else config.ppo
    threads = own.threads or 1
    if config.backend == "local":  # for all processes of a machine together
        threads = -(-threads // config.ranks)
    return Needs(threads, {"cpu": 0, "cuda": 1}.get(own.device))
