"""The host's side of one fork server: starts, uses and kills it."""

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
from orchestry.sandbox.inside.server import ORDER, PATIENCE, REPLY, UNCONFINED

_PR_SET_DUMPABLE = 4
FLAGS = ("-s", "-P", "-S")  # no site, no folder of its own on sys.path
_ENVIRON = {
    "PYTHONHASHSEED": "0",  # fixed order of sets, so that outcomes repeat
    "LD_BIND_NOW": "1",  # otherwise each fork would resolve library functions again
    "MALLOC_ARENA_MAX": "1",  # otherwise each thread would take 64 MiB of address space
}
_LOADER = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some interpreters don't start without these; the server removes them at once."""
PACKAGE = "orchestry.sandbox.inside"
_PROGRAM = (
    *("tagged", "wire", "syscalls", "seccomp", "confine", "image"),
    *("mirror", "candidate", "tester", "objects", "standin", "pytester", "trial", "server"),
)
_START_S = 20.0  # for starting the interpreter on a busy machine
_GRACE_S = 10.0  # in addition to the run's time, for a server without its own core
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
class Ended:
    """How a run ended (server.ENDED and so on), its wait status, and its output."""

    end: int
    status: int
    said: bytes
    cpu_s: float = 0.0
    """CPU time of that process; 0 if it was not measured."""


class Unavailable(SandboxError):
    """This machine does not support the level."""


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
        """The server's report on its confinement: level, machine, Landlock's ABI."""

    @classmethod
    async def start(cls, level: int) -> Worker:
        """A server that is confined and ready.

        Raises Unavailable if the level is not available, SandboxError if no interpreter starts.
        """
        if level == UNCONFINED:
            _hide_process()
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

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Ended:
        """One run of one process per job. Raises ConnectionError if the server is gone."""
        order = [ORDER.pack(wall_s, room, len(jobs))]
        order += [wire.framed(marshal.dumps(job)) for job in jobs]
        self._writer.write(b"".join(order))  # in one write, because each part would wake the server
        try:
            async with asyncio.timeout(wall_s * PATIENCE + _GRACE_S):
                await self._writer.drain()
                head = await self._reader.readexactly(REPLY.size)
                end, status, cpu_s, size = REPLY.unpack(head)
                return Ended(end, status, await self._reader.readexactly(size), cpu_s)
        except (asyncio.IncompleteReadError, TimeoutError):
            raise ConnectionError from None

    async def close(self) -> None:
        """Ends the server and all its children."""
        self._writer.close()
        # Process.kill may reap the process unseen by asyncio.
        if self._process.returncode is None:
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
                size = int.from_bytes(await self._reader.readexactly(wire.PREFIX), "big")
                self.facts = tagged.loads(await self._reader.readexactly(min(size, _MAX_GREETING)))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            raise SandboxError(_no_start(self._process.returncode)) from None
        if why := self.facts["why"]:
            raise Unavailable(why)


@functools.cache
def _program() -> bytes:
    """The server's code, compiled with a file name that does not exist."""
    folder = resources.files(PACKAGE)
    modules = [(PACKAGE, compile("", "<runner>", "exec"))]
    for name in _PROGRAM:
        source = folder.joinpath(f"{name}.py").read_text(encoding="utf-8")
        code = compile(source, "<runner>", "exec", dont_inherit=True)
        modules.append((f"{PACKAGE}.{name}", code))
    return marshal.dumps(modules)


def _interpreter() -> str:
    """The base Python of this environment, because the environment's path may be beside the
    tasks."""
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


@functools.cache
def _hide_process() -> None:
    """Hides this process's environment and memory from the user's other processes (Linux).

    Root can still read them. Profilers and debuggers then need root to attach.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # no libc to load, or none with prctl
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
