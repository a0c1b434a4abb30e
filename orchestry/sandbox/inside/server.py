"""The fork server: a warm interpreter that is confined once and forked for every run.

The child reads its job, never the server, so that no candidate's or test's data is in the memory of
the next. The server watches the clock, buffers the child's output up to a limit, kills what is
left, and reports how the child ended. Only the host interprets the output.
"""

from __future__ import annotations

import fcntl
import gc
import marshal
import math
import os
import platform
import posix
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from orchestry.sandbox.inside import image, wire
from orchestry.sandbox.inside.candidate import Send, answer_calls, answer_test, heed_timer
from orchestry.sandbox.inside.objects import Served
from orchestry.sandbox.inside.pytester import run_pytest
from orchestry.sandbox.inside.tagged import dumps
from orchestry.sandbox.inside.tester import run_test
from orchestry.sandbox.inside.trial import holes, warm_up

ORDER = struct.Struct("!dQB")
"""Wall-clock seconds, maximum bytes of output, and number of processes: 1, or 2 for a test."""
REPLY = struct.Struct("!BidI")
"""How it ended, the wait status, CPU seconds, and the number of following bytes."""
ENDED, LATE, FULL, MUTE = range(4)
"""It ended; time ran out; too much output; it is alive but closed its output."""
_LAST_WORD = wire.framed(b"")
"""The last message; after it the child's end is not waited for."""
RECORDS, PEER = 3, 4
"""File descriptors in a child."""
_OPEN_FILES = 64
_FIXED = {
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: _OPEN_FILES,
    resource.RLIMIT_CORE: 0,
}
_THREAD_STACK = 1 << 20
_MOST = 1 << 16
_QUIET_MS = 10
PATIENCE = 10
"""A run that uses CPU time may take this many times its wall-clock time: it waits for a core."""
AWAKE = 0.01
"""Share of a core; a process that uses less sleeps."""
_LAST_S = 0.1  # in addition to the run's time, for a process that is ending
_LOOK_S = 0.0002
_BROKEN = 70  # EX_SOFTWARE
UNCONFINED = 4


@dataclass
class Cell:
    """What a child needs to confine itself."""

    level: int
    base: int
    """Bytes of address space of the interpreter itself; 0 if it can't be limited."""
    counted: int
    """Number of processes with this server's user id; 0 if others may have it too, so that threads
    can't be counted."""
    lock: Callable[[], None]
    """The last step: from now on the child is confined."""
    cpu_s: int = field(default_factory=lambda: _hard(resource.RLIMIT_CPU))
    memory: int = field(default_factory=lambda: _hard(resource.RLIMIT_AS))
    processes: int = field(default_factory=lambda: _hard(resource.RLIMIT_NPROC))
    """This process's limits, for those that each run lowers."""


class Watch:
    """When a run is late: after its wall-clock time, and as long again while it uses CPU time."""

    def __init__(self, wall_s: float) -> None:
        self.pids: list[int] = []
        self._wall_s = wall_s
        self._used = 0.0
        self._began = time.monotonic()
        self.deadline = self._began + wall_s

    def left_ms(self) -> int:
        """Until it is late; 0 if it is."""
        now = time.monotonic()
        if now >= self.deadline and now < self._began + PATIENCE * self._wall_s:
            used = sum(map(_cpu_s, self.pids))
            if used - self._used >= AWAKE * self._wall_s:
                self._used, self.deadline = used, now + self._wall_s
        return max(0, math.ceil((self.deadline - now) * 1000))


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process; 0 where the system does not say."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)
    except OSError:
        return 0.0


def main(level: int) -> NoReturn:
    """Confines this process, reports how, then serves orders until the host is gone."""
    control = fcntl.fcntl(0, fcntl.F_DUPFD, PEER + 1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(PEER + 1):
        os.dup2(null, fd)
    if null > PEER:  # otherwise it is one of those descriptors itself
        os.close(null)
    os.environ.clear()
    threading.stack_size(_THREAD_STACK)
    random.seed(0)  # outcomes repeat
    heed_timer()
    try:
        image.serve_imports()
        # Until here none of this program's modules could register a hook.
        os.register_at_fork = posix.register_at_fork
        warm_up()
        cell, said = enter(level)
        for which, cap in _FIXED.items():
            most = min(cap, _hard(which))
            resource.setrlimit(which, (most, most))
        said["why"] = "" if level == UNCONFINED else holes(cell.lock)
    except (OSError, KeyError) as error:
        said = {"why": str(error)}
    wire.send(control, dumps(said))
    if said["why"]:
        os._exit(1)
    _forget()
    try:
        while True:
            serve(control, cell, *ORDER.unpack(wire.read(control, ORDER.size)))
    except (EOFError, OSError):
        os._exit(0)


def enter(level: int) -> tuple[Cell, dict[str, Any]]:
    """Confines this process at that level. Raises OSError if the system forbids it."""
    base = _address_space()
    if level == UNCONFINED:
        return Cell(level, base, counted=0, lock=lambda: None), {"level": level}
    if level not in (1, 2):
        raise OSError(f"no such level: {level}")
    from orchestry.sandbox.inside import confine, seccomp

    machine = platform.machine()
    filters = [seccomp.Filter(steps(machine)) for steps in (seccomp.for_server, seccomp.for_child)]

    server = os.getpid()

    def lock() -> None:
        confine.die_with_parent()
        if os.getppid() != server:  # it died before it could take this process with it
            os._exit(_BROKEN)
        filters[1].install()

    if level == 1:
        confine.namespaces(machine)
    alone = confine.nobody()
    counted = 1 if alone else 2 if level == 1 else 0  # the server, and without root its guard
    confine.powerless(machine)  # first, because Landlock needs it
    abi = confine.landlock()
    filters[0].install()
    # At level 1 the server is the first process, with which all others end.
    locked = filters[1].install if level == 1 else lock
    return Cell(level, base, counted, locked), {"level": level, "machine": machine, "landlock": abi}


def serve(control: int, cell: Cell, wall_s: float, room: int, processes: int) -> None:
    """One run from start to end; nothing of it is left, whatever happens.

    Little is done while a child lives, because each page that this process writes then is copied.
    """
    mine, theirs = os.pipe()
    watch = Watch(wall_s)
    poll = select.poll()
    poll.register(control, 0)  # 0: only watches whether the other end is closed
    poll.register(mine, 0)
    if processes == 1:
        child, ready = _fork(control, cell, {RECORDS: theirs})
        children = [child]
    else:  # only the test reports the result
        one, other = (end.detach() for end in socket.socketpair())
        first, ready = _fork(control, cell, {PEER: one})
        _wait_for(ready)
        second, ready = _fork(control, cell, {PEER: other, RECORDS: theirs})
        children = [first, second]
        os.close(one)
        os.close(other)
    os.close(theirs)
    watch.pids = children
    try:
        end, said = _listen(poll, control, mine, watch, room)
    except EOFError:
        _clear(cell, children)
        raise
    os.close(mine)
    if said.endswith(_LAST_WORD):
        os.close(ready)
        try:
            _reply(control, ENDED, said[: -len(_LAST_WORD)])
        finally:
            _clear(cell, children)
        return
    _wait_for(ready)
    ended = _wait(children[-1], watch.deadline) if end == ENDED else None
    if end == ENDED and ended is None:
        end = MUTE
    killed = _clear(cell, children[:-1] if ended else children)
    _reply(control, end, said, *(ended or killed))


def _reply(control: int, end: int, said: bytes, status: int = 0, cpu_s: float = 0.0) -> None:
    wire.write(control, REPLY.pack(end, status, cpu_s, len(said)) + said)


def _fork(control: int, cell: Cell, kept: dict[int, int]) -> tuple[int, int]:
    """A child, and a pipe that closes when the child has read its part of the order.

    No other process may read before that.
    """
    ready, done = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            job = marshal.loads(wire.receive(control))
            _child(cell, job, kept)
        finally:
            os._exit(_BROKEN)
    os.close(done)
    return pid, ready


def _wait_for(ready: int) -> None:
    os.read(ready, 1)
    os.close(ready)


def _child(cell: Cell, job: dict[str, Any], kept: dict[int, int]) -> None:
    """The work of a child; it exits when the work is done."""
    os.setsid()
    _keep(kept)
    _restrict(cell, job)
    sys.setrecursionlimit(job["recursion"])
    gc.enable()
    put, close = wire.write, os.close  # so that a candidate can't replace it
    leave = os._exit  # nor can its threads or exit handlers delay this
    say = _sayer(RECORDS if RECORDS in kept else PEER)
    cell.lock()
    if "library" in job:
        run_pytest(job, _ask, say)
    elif "test" in job:
        run_test(job, _ask, say)
    elif RECORDS in kept:
        answer_calls(job, say)
    elif "entry_point" not in job:
        Served(job, partial(wire.receive, PEER), say).until_told()
    else:
        answer_test(job, partial(wire.receive, PEER), say)
    put(RECORDS, _LAST_WORD)
    close(RECORDS)
    leave(0)


def _ask(args: bytes) -> bytes:
    """One call of the candidate by a test."""
    wire.send(PEER, args)
    return wire.receive(PEER)


def _sayer(fd: int) -> Send:
    """Sends records with functions that a candidate can't replace by patching `os`."""
    send, getpid, leave = wire.send, os.getpid, os._exit
    pid = getpid()

    def say(record: bytes) -> None:
        if getpid() != pid:  # a forked process, possible only at the unconfined level
            leave(0)
        send(fd, record)

    return say


def _keep(kept: dict[int, int]) -> None:
    """Moves the needed descriptors to their places and closes the rest; unused ones become the null
    device."""
    for place in (RECORDS, PEER):
        os.dup2(kept.get(place, 0), place)  # 0 is the null device
    os.closerange(PEER + 1, _OPEN_FILES)


def _restrict(cell: Cell, job: dict[str, Any]) -> None:
    """Sets the limits of this run; a lower limit of this process stays.

    In as few steps as possible, because each child copies every page that they touch.
    """
    limit = resource.setrlimit
    cpu_s, most = job["cpu_s"], cell.cpu_s
    # At the hard limit the kernel kills without a reason, so the soft limit is lower.
    limit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1) if cpu_s < most else (most, most))
    if cell.base:
        size = cell.base + (job["memory_mb"] << 20)
        size = size if size < cell.memory else cell.memory
        limit(resource.RLIMIT_AS, (size, size))
    if cell.counted:
        count = job["processes"] + cell.counted
        count = count if count < cell.processes else cell.processes
        limit(resource.RLIMIT_NPROC, (count, count))


def _hard(which: int) -> int:
    """This process's limit, which can't be raised."""
    hard = resource.getrlimit(which)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _listen(
    poll: select.poll, control: int, mine: int, watch: Watch, room: int
) -> tuple[int, bytes]:
    """The output until the child ends, and how it ended. Raises EOFError if the host is gone.

    At first only the end is waited for: most runs are short, and each output would wake this
    process.
    """
    found = poll.poll(_QUIET_MS)
    over = [(mine, select.POLLHUP)] == found
    if not over:
        poll.modify(mine, select.POLLIN)
    said = bytearray()
    while over or _ready(poll, control, watch):
        part = os.read(mine, _MOST)
        said += part
        if not part or said.endswith(_LAST_WORD):
            return ENDED, bytes(said)
        if len(said) > room:
            return FULL, bytes(said[:room])
    return LATE, bytes(said)


def _ready(poll: select.poll, control: int, watch: Watch) -> bool:
    """Whether the run had output before it was late. Raises EOFError if the host is gone."""
    found: list[tuple[int, int]] = []
    while not found and (left := watch.left_ms()):
        found = poll.poll(left)
    for fd, _ in found:
        if fd == control:
            raise EOFError
    return bool(found)


def _wait(pid: int, deadline: float) -> tuple[int, float] | None:
    """Status and CPU seconds of a child that sent its last message; None if it is alive.

    The child ends a moment after its last message.
    """
    deadline = max(deadline, time.monotonic() + _LAST_S)
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            return status, used.ru_utime + used.ru_stime
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_S)


def _clear(cell: Cell, children: list[int]) -> tuple[int, float]:
    """Kills what is left of a run; returns wait status and CPU seconds of the last process."""
    if cell.level == 1:  # all processes except this one
        _kill(os.kill, -1)
    else:
        for pid in children:
            _kill(os.killpg, pid)
            _kill(os.kill, pid)  # before it had a group
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_RDWR)  # shared by runs, which may have set its flags
    status, cpu_s = 0, 0.0
    for pid in children:
        _, status, used = os.wait4(pid, 0)
        cpu_s = used.ru_utime + used.ru_stime
    return status, cpu_s


def _kill(how: Callable[[int, int], None], pid: int) -> None:
    try:  # noqa: SIM105
        how(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _forget() -> None:
    """Removes what only the server needs; the rest is shared, not copied."""
    ours = ("orchestry", "ctypes", "_ctypes")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    sys.executable, sys.orig_argv = "", []  # names of this machine's folders
    gc.disable()
    gc.collect()
    gc.freeze()


def _address_space() -> int:
    """Bytes that this process has mapped; 0 on macOS, which has no such limit."""
    if sys.platform == "darwin":
        return 0
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
