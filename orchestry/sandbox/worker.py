"""One fork server, as the host sees it: started, asked, killed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import marshal
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from orchestry.core.errors import SandboxError
from orchestry.sandbox.inside import tagged, wire
from orchestry.sandbox.inside.server import ORDER, REPLY, UNCONFINED
from orchestry.sandbox.redact import hide_process

FLAGS = ("-s", "-P", "-S")  # no site, no folder of its own on sys.path
_ENVIRON = {
    "PYTHONHASHSEED": "0",  # sets have one order, so that verdicts repeat
    "LD_BIND_NOW": "1",  # else each fork would look up the same functions of libraries again
    "MALLOC_ARENA_MAX": "1",  # else each thread would take 64 MiB of address space
}
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Without these some interpreters do not start; the server forgets them as soon as it has."""
PACKAGE = "orchestry.sandbox.inside"
_PROGRAM = (
    *("tagged", "wire", "syscalls", "seccomp", "confine", "image"),
    *("candidate", "tester", "trial", "server"),
)
_START_S = 20.0  # for the interpreter alone, on a machine that is busy with other things
_GRACE_S = 10.0  # beyond the run's own time, for a server that has no core to itself
_MAX_GREETING = 1 << 16
_BOOT = """
import marshal, os, sys, types
os.register_at_fork = lambda **hooks: None
def read(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
for name, code in marshal.loads(read(int.from_bytes(read(4), "big"))):
    sys.modules[name] = module = types.ModuleType(name)
    exec(code, module.__dict__)
module.main(int(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Played:
    """How a run ended (server.ENDED and so on), its wait status, and what was said until then."""

    end: int
    status: int
    said: bytes
    cpu_s: float = 0.0
    """CPU time of the process whose status it is; 0 where nobody counted."""


class Refused(SandboxError):
    """This machine does not allow what the level needs."""


class Worker:
    """A server process that forks a child for each run. One run at a time."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        folder: str | None,
    ) -> None:
        self._process = process
        self._reader, self._writer = streams
        self._folder = folder
        self.facts: dict[str, Any] = {}
        """What the server said of its confinement: level, machine, Landlock's ABI."""

    @classmethod
    async def start(cls, level: int) -> Worker:
        """A server that is confined and ready.

        Raises Refused if the level can't be had here, SandboxError where no interpreter starts.
        """
        if level == UNCONFINED:
            hide_process()
        mine, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(mine.close)
            folder = tempfile.mkdtemp(prefix="orchestry-") if level == UNCONFINED else None
            if folder:
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
            streams = await asyncio.open_connection(sock=mine)
            process = await _spawn(level, theirs, folder or "/")
            undo.pop_all()
        worker = cls(process, streams, folder)
        try:
            await worker._greet()
        except BaseException:
            await worker.close()
            raise
        return worker

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Played:
        """One run of one process per job. Raises ConnectionError if the server is gone."""
        order = [ORDER.pack(wall_s, room, len(jobs))]
        order += [wire.framed(marshal.dumps(job)) for job in jobs]
        self._writer.write(b"".join(order))  # at once: each part would wake the server
        try:
            async with asyncio.timeout(wall_s + _GRACE_S):
                await self._writer.drain()
                head = await self._reader.readexactly(REPLY.size)
                end, status, cpu_s, size = REPLY.unpack(head)
                return Played(end, status, await self._reader.readexactly(size), cpu_s)
        except (asyncio.IncompleteReadError, TimeoutError):
            raise ConnectionError from None

    async def close(self) -> None:
        """Ends the server and all that it started."""
        self._writer.close()
        if self._process.returncode is None:  # not Process.kill: that may reap, unseen by asyncio
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _greet(self) -> None:
        self._writer.write(wire.framed(_program()))
        try:
            async with asyncio.timeout(_START_S):
                size = int.from_bytes(await self._reader.readexactly(wire.HEAD), "big")
                self.facts = tagged.loads(await self._reader.readexactly(min(size, _MAX_GREETING)))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            raise SandboxError(_no_start(self._process.returncode)) from None
        if why := self.facts["why"]:
            raise Refused(why)


@functools.cache
def _program() -> bytes:
    """The server's code, compiled under a name that leads nowhere."""
    folder = resources.files(PACKAGE)
    modules = [(PACKAGE, compile("", "<runner>", "exec"))]
    for name in _PROGRAM:
        source = folder.joinpath(f"{name}.py").read_text(encoding="utf-8")
        code = compile(source, "<runner>", "exec", dont_inherit=True)
        modules.append((f"{PACKAGE}.{name}", code))
    return marshal.dumps(modules)


def _interpreter() -> str:
    """The Python below this environment: the environment's own path may lie beside the tasks."""
    return str(Path(sys.executable).resolve())


async def _spawn(level: int, control: socket.socket, cwd: str) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            _interpreter(),
            *(*FLAGS, "-c", _BOOT, str(level)),
            stdin=control.fileno(),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=_ENVIRON | {name: os.environ[name] for name in _LOADER if name in os.environ},
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(
            f"the sandbox can't start a process ({error.strerror}): free memory or processes, "
            "or lower search.episodes_in_flight"
        ) from None


def _no_start(code: int | None) -> str:
    return (
        f"the sandbox's interpreter did not start (exit status {code}): try "
        f"`{_interpreter()} {' '.join(FLAGS)} -c pass`"
    )
