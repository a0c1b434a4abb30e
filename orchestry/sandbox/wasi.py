"""Level 3, for machines that can't confine a process: CPython for WASI in this one.

An instance reaches what the host's functions give it, and no more: the border is wasmtime's, not
the kernel's. Each run has a fresh instance, started ahead so that the run does not wait for it.
"""

from __future__ import annotations

import asyncio
import functools
import marshal
from collections.abc import Sequence
from importlib import metadata, resources
from typing import Any

from orchestry.core.distribution import install
from orchestry.core.errors import OrchestryError, SandboxError
from orchestry.core.types import Limits
from orchestry.sandbox.inside import tagged, wire
from orchestry.sandbox.inside.server import LATE
from orchestry.sandbox.instance import Instance
from orchestry.sandbox.runtime import PYTHON, Runtime, open_runtime
from orchestry.sandbox.worker import PACKAGE, Played, Refused

WASI = 3
_PROGRAM = ("tagged", "wire", "candidate", "tester", "guest")
_START_S = 60.0  # for the interpreter alone, on a machine that is busy with other things
_END_S = 10.0  # from an order to stop to the end: a stopped instance has nothing to wait for
_MARSHAL = 2  # a version that every Python reads
_BOOT = """
import marshal, os, sys
def read(size):
    data = b""
    while len(data) < size:
        part = os.pread(0, size - len(data), 1)
        if not part:
            sys.exit()
        data += part
    return data
for name, source in marshal.loads(read(int.from_bytes(read(4), "big"))):
    sys.modules[name] = module = type(sys)(name)
    exec(compile(source, "<runner>", "exec"), module.__dict__)
module.main()
"""


class WasiWorker:
    """What Worker is at the other levels. One run at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._warm: list[Instance] = []
        self._memory_mb = Limits().memory_mb
        version = metadata.version("wasmtime")
        self.facts: dict[str, Any] = {"level": WASI, "python": PYTHON, "wasmtime": version}
        """What it runs on."""

    @classmethod
    async def start(cls) -> WasiWorker:
        """A worker whose first instance is ready.

        Fetches and compiles the interpreter at the first use of a machine. Raises Refused where
        it can't be had.
        """
        try:
            runtime = await asyncio.to_thread(open_runtime)
        except ImportError:
            raise Refused(f"wasmtime is not installed: `{install('wasi')}`") from None
        except OrchestryError as error:
            raise Refused(str(error)) from None
        worker = cls(runtime)
        worker._warm.append(worker._new())
        try:
            await worker._ready(worker._warm[0])
        except BaseException as error:
            await worker.close()
            if not isinstance(error, ConnectionError):
                raise
            why = f"CPython for WASI does not start ({error}): look for a lack of memory"
            raise SandboxError(why) from None
        return worker

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Played:
        """One run of one instance a job. Raises ConnectionError where no instance starts."""
        self._memory_mb = jobs[0]["memory_mb"]
        running = [self._take() for _ in jobs]
        try:
            for instance in running:
                await self._ready(instance)
            if len(running) > 1:  # only the test can say what came of it
                candidate, test = running
                candidate.peer, test.peer = test.inbox, candidate.inbox
            last = running[-1]
            for instance, job in reversed([*zip(running, jobs, strict=True)]):
                content = wire.framed(tagged.dumps(job))
                instance.begin(content, room if instance is last else 0)
            await _until(last, wall_s)
            last.stop(LATE)
            await _until(last, _END_S)
            over = last.over.result(timeout=0)
            return Played(over.end, over.status, bytes(last.said))
        except TimeoutError:
            raise ConnectionError from None
        finally:
            for instance in running:
                instance.stop()
            self._warm.append(self._new())

    async def close(self) -> None:
        """Ends every instance."""
        warm, self._warm = self._warm, []
        for instance in warm:
            instance.stop()
        for instance in warm:
            await _until(instance, _END_S)

    def _take(self) -> Instance:
        """One that has the memory of this run, new where none is ready."""
        while self._warm:
            instance = self._warm.pop()
            if instance.memory_mb == self._memory_mb and not instance.over.done():
                return instance
            instance.stop()
        return self._new()

    def _new(self) -> Instance:
        return Instance(self._runtime, _BOOT, _program(), self._memory_mb)

    async def _ready(self, instance: Instance) -> None:
        await asyncio.wait([asyncio.wrap_future(instance.ready)], timeout=_START_S)
        if instance.over.done() or not instance.ready.done():
            error = instance.over.exception() if instance.over.done() else None
            raise ConnectionError(error or "it ended" if instance.over.done() else "it hangs")


async def _until(instance: Instance, seconds: float) -> None:
    """Waits for its end, so long."""
    await asyncio.wait([asyncio.wrap_future(instance.over)], timeout=seconds)


@functools.cache
def _program() -> bytes:
    """The guest's source, for the interpreter inside is another one than this."""
    folder = resources.files(PACKAGE)
    modules = [(PACKAGE, "")]
    for name in _PROGRAM:
        source = folder.joinpath(f"{name}.py").read_text(encoding="utf-8")
        modules.append((f"{PACKAGE}.{name}", source))
    return wire.framed(marshal.dumps(modules, _MARSHAL))
