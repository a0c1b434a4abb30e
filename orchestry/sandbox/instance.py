"""One instance of CPython for WASI, in a thread: what it may ask of the host, and how it ends.

It has no folder, no environment of this process and no network: all that it can reach are the
functions below and those of wasmtime's WASI, which find nothing to open. None of them waits
longer than the run, so that every instance can be stopped.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestry.sandbox.inside.guest import INBOX, PEER, RECORDS
from orchestry.sandbox.inside.server import ENDED, FULL
from orchestry.sandbox.runtime import Runtime
from orchestry.sandbox.stack import STACK
from orchestry.sandbox.worker import FLAGS

if TYPE_CHECKING:
    import wasmtime

_WASI = "wasi_snapshot_preview1"
_ENVIRON = {"PYTHONHASHSEED": "0"}  # sets have one order, so that verdicts repeat
_OK, _BAD_DESCRIPTOR, _FAULT, _INVALID, _IO, _UNSUPPORTED = 0, 8, 21, 28, 29, 58  # WASI's errno
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_MASK = (1 << 32) - 1  # wasmtime gives addresses as signed numbers
_UNREAD = 1 << 20
_PART = 1 << 16
_MAX_EVENTS = 64
_IOVEC, _SIZE, _TIME = struct.Struct("<II"), struct.Struct("<I"), struct.Struct("<Q")
_CLOCK_ALARM = struct.Struct("<QB7xI4xQQH6x")
"""__wasi_subscription_t of a clock: user data, type, clock, timeout, precision, flags."""
_EVENT = struct.Struct("<QHB21x")
_CLOCK, _ABSOLUTE = 0, 1
_NOW: dict[int, Callable[[], int]] = {0: time.time_ns, 1: time.monotonic_ns}
_Call = Callable[..., int]


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

    def put(self, data: bytes) -> None:
        """Appends, at once. What comes after `close` is dropped."""
        with self._changed:
            self._bytes += data if self._open else b""
            self._changed.notify_all()

    def write(self, data: bytes) -> None:
        """Appends as soon as there is room."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._bytes) < _UNREAD or not self._open)
        self.put(data)

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


@dataclass(frozen=True, slots=True)
class Over:
    """How it ended, as server.REPLY has it: which end, and a wait status."""

    end: int
    status: int


class Instance:
    """Starts at once: it runs `boot`, which reads `program`, then waits for a job.

    Safe to use from many threads. It must be stopped.
    """

    def __init__(self, runtime: Runtime, boot: str, program: bytes, memory_mb: int) -> None:
        self._engine, self._module = runtime.module()
        self._argv = ["python", *FLAGS, "-c", boot]
        self.memory_mb = memory_mb
        self._stopped = threading.Event()
        self._end: int | None = None
        self._room = 0
        self.peer: Pipe | None = None
        """The inbox of the instance beside it."""
        self.inbox = Pipe()
        self.inbox.put(program)
        self.said = bytearray()
        self.ready: Future[None] = Future()
        """Done as soon as it has read its program and waits for more, or is over without."""
        self.over: Future[Over] = Future()
        threading.Thread(target=self._live, daemon=True, name="wasi").start()

    def begin(self, job: bytes, room: int) -> None:
        """Gives it its job, and `room` bytes for records."""
        self._room = room
        self.inbox.put(job)

    def stop(self, end: int = ENDED) -> None:
        """Ends it wherever it is; only the first reason counts."""
        if self._end is None:
            self._end = end
        self._stopped.set()
        self.inbox.close()
        if self.peer:
            self.peer.close()
        self._engine.increment_epoch()

    def _live(self) -> None:
        try:
            status = self._run()
        except BaseException as error:
            self.over.set_exception(error)
        else:
            self.over.set_result(Over(ENDED if self._end is None else self._end, status))
        finally:
            if not self.ready.done():
                self.ready.set_result(None)
            self.stop()

    def _run(self) -> int:
        """Its wait status: as if it were a process that the kernel ends for what wasm traps."""
        import wasmtime

        config = wasmtime.WasiConfig()
        config.argv = self._argv
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
        """WASI, but for what could wait, and for the streams."""
        import wasmtime

        linker.allow_shadowing = True
        linker.define_wasi()
        i32, i64 = wasmtime.ValType.i32(), wasmtime.ValType.i64()
        own: dict[str, tuple[_Call, list[wasmtime.ValType]]] = {
            "fd_read": (_no_read, [i32, i32, i32, i32]),
            "fd_write": (_no_write, [i32, i32, i32, i32]),
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
        at, size = memory.vectors(vectors, 1)[0]
        part = self.inbox.read(min(size, _PART))
        memory.write(at, part)
        memory.write(out, _SIZE.pack(len(part)))
        return _OK

    def _write(self, memory: Memory, fd: int, vectors: int, n: int, channel: int, out: int) -> int:
        if fd != _STDOUT or n < 1:
            return _BAD_DESCRIPTOR
        at, size = memory.vectors(vectors, 1)[0]
        part = memory.read(at, min(size, _PART))
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
        """Sleeps until the first alarm; a descriptor can't be waited for."""
        if not 0 < n <= _MAX_EVENTS:
            return _INVALID
        found = _CLOCK_ALARM.iter_unpack(memory.read(alarms, n * _CLOCK_ALARM.size))
        left: list[tuple[int, int]] = []
        for user, kind, clock, timeout, _, flags in found:
            if kind != _CLOCK or clock not in _NOW:
                return _UNSUPPORTED
            left.append((timeout - (_NOW[clock]() if flags & _ABSOLUTE else 0), user))
        soonest, user = min(left)
        self._stopped.wait(min(max(soonest, 0) / 1e9, threading.TIMEOUT_MAX))
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

    def vectors(self, at: int, n: int) -> list[tuple[int, int]]:
        """Address and length of each of n buffers."""
        return list(_IOVEC.iter_unpack(self.read(at, n * _IOVEC.size)))


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


def _no_read(memory: Memory, fd: int, vectors: int, n: int, out: int) -> int:
    """The null device."""
    if fd != _STDIN:
        return _BAD_DESCRIPTOR
    memory.write(out, _SIZE.pack(0))
    return _OK


def _no_write(memory: Memory, fd: int, vectors: int, n: int, out: int) -> int:
    """The null device."""
    if fd not in (_STDOUT, _STDERR):
        return _BAD_DESCRIPTOR
    if not 0 <= n <= _PART:
        return _INVALID
    size = sum(size for _, size in memory.vectors(vectors, n))
    memory.write(out, _SIZE.pack(size & _MASK))
    return _OK


def _clock(memory: Memory, clock: int, precision: int, out: int) -> int:
    if clock not in _NOW:
        return _INVALID
    memory.write(out, _TIME.pack(_NOW[clock]()))
    return _OK
