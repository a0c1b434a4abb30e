"""The fork server: a warm interpreter that is confined once and forked for every run.

It never reads a job: the child does, so that nothing of one candidate, or of a test, lies in the
memory of the next. It watches the clock, holds what the child says up to a bound, kills what is
left and passes on how the child ended; what was said is the host's to read.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import math
import os
import platform
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
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from orchestry.services.sandbox.inside import image, wire
from orchestry.services.sandbox.inside.candidate import answer_calls, answer_test
from orchestry.services.sandbox.inside.tagged import dumps, loads
from orchestry.services.sandbox.inside.tester import run_test

ORDER = struct.Struct("!dQB")
"""Seconds on the wall clock, bytes that may be said, and how many processes: 1, or 2 for a test."""
REPLY = struct.Struct("!BidI")
"""Which end, the wait status, seconds of CPU time, how many bytes follow."""
ENDED, LATE, FULL, MUTE = range(4)
"""It ended; the clock ran out; it said more than it may; it lives on but can say no more."""
RECORDS, PEER = 3, 4
"""Descriptors in a child."""
_OPEN_FILES = 64
_THREAD_STACK = 1 << 20
_LAST_S = 0.1  # beyond the run's own time, for a process that is on its way out
_LOOK_S = 0.0002
_BROKEN = 70  # EX_SOFTWARE
UNCONFINED = 4


@dataclass
class Cell:
    """What a child needs to confine itself."""

    level: int
    base: int
    """Bytes of address space that the interpreter has by itself; 0 where it can't be limited."""
    counted: int
    """How many other processes have this server's user id; 0 where others may have it too, so that
    threads can't be counted."""
    lock: Callable[[], None]
    """The last step: from here on the child is held."""


def main(level: int) -> NoReturn:
    """Confines this process, says how far, then serves orders until the host is gone."""
    control = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.environ.clear()
    threading.stack_size(_THREAD_STACK)
    try:
        image.install()
        cell, said = enter(level)
        said["why"] = _holes(cell)
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
    """Confines this process as the level says. Raises OSError for what the system forbids."""
    base = _address_space()
    if level == UNCONFINED:
        return Cell(level, base, counted=0, lock=lambda: None), {"level": level}
    if level not in (1, 2):
        raise OSError(f"no such level: {level}")
    from orchestry.services.sandbox.inside import confine, seccomp

    machine = platform.machine()
    filter_calls = seccomp.Filter(machine).install

    def lock() -> None:
        confine.die_with_parent()
        filter_calls()

    if level == 1:
        confine.namespaces(machine)
    alone = confine.nobody()
    counted = 1 if alone else 2 if level == 1 else 0  # the server, and without root its guard
    confine.powerless(machine)  # first, for only then may anybody use Landlock
    abi = confine.landlock()
    return Cell(level, base, counted, lock), {"level": level, "machine": machine, "landlock": abi}


def serve(control: int, cell: Cell, wall_s: float, room: int, processes: int) -> None:
    """One run from start to end: nothing of it is left, whatever happens."""
    mine, theirs = os.pipe()
    if processes == 1:
        places = [{RECORDS: theirs}]
    else:  # only the test can say what came of it
        one, other = (end.detach() for end in socket.socketpair())
        places = [{PEER: one}, {PEER: other, RECORDS: theirs}]
    children = [_fork(control, cell, kept) for kept in places]
    for fd in {fd for kept in places for fd in kept.values()}:
        os.close(fd)
    deadline = time.monotonic() + wall_s
    try:
        end, said = _listen(control, mine, deadline, room)
    except EOFError:
        _clear(cell, children)
        raise
    os.close(mine)
    ended = _wait(children[-1], deadline) if end == ENDED else None
    if end == ENDED and ended is None:
        end = MUTE
    killed = _clear(cell, children[:-1] if ended else children)
    status, cpu_s = ended or killed
    wire.put(control, REPLY.pack(end, status, cpu_s, len(said)) + said)


def _fork(control: int, cell: Cell, kept: dict[int, int]) -> int:
    """A child that reads its part of the order before anybody else reads on."""
    ready, done = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            job = loads(wire.receive(control))
            _child(cell, job, kept)
        finally:
            os._exit(_BROKEN)
    os.close(done)
    os.read(ready, 1)
    os.close(ready)
    return pid


def _child(cell: Cell, job: dict[str, Any], kept: dict[int, int]) -> None:
    """What is done in a child; it leaves as soon as its work is done."""
    os.setsid()
    _keep(kept)
    _restrict(cell, job)
    random.seed(0)  # verdicts repeat
    sys.setrecursionlimit(job["recursion"])
    gc.enable()
    leave = os._exit  # no exit handler or thread of the candidate holds the child up
    say = _sayer(RECORDS if RECORDS in kept else PEER)
    cell.lock()
    if "test" in job:
        run_test(job, _ask, say)
    elif RECORDS in kept:
        answer_calls(job, say)
    else:
        answer_test(job, partial(wire.receive, PEER), say)
    leave(0)


def _ask(args: bytes) -> bytes:
    """One call of the candidate by a test."""
    wire.send(PEER, args)
    return wire.receive(PEER)


def _sayer(fd: int) -> Callable[[dict[str, Any]], None]:
    """Sends records by what a candidate can't swap by patching `os` or `json`."""
    send, encode, getpid, leave = wire.send, dumps, os.getpid, os._exit
    pid = getpid()

    def say(record: dict[str, Any]) -> None:
        if getpid() != pid:  # a fork, which only the unconfined level allows
            leave(0)
        send(fd, encode(record))

    return say


def _keep(kept: dict[int, int]) -> None:
    """Closes all but what is kept, which moves to its place, and three that lead nowhere."""
    high = {place: fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for place, fd in kept.items()}
    for place, fd in high.items():
        os.dup2(fd, place)
    for place in {RECORDS, PEER} - set(kept):
        os.closerange(place, place + 1)
    os.closerange(PEER + 1, 256)


def _restrict(cell: Cell, job: dict[str, Any]) -> None:
    """Lowers the limits for good."""
    cpu = math.ceil(job["cpu_s"])
    caps = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: cpu + 1,
    }
    if cell.base:
        caps[resource.RLIMIT_AS] = cell.base + (job["memory_mb"] << 20)
    if cell.counted:
        caps[resource.RLIMIT_NPROC] = job["processes"] + cell.counted
    for which, cap in caps.items():
        hard = resource.getrlimit(which)[1]
        cap = cap if hard == resource.RLIM_INFINITY else min(cap, hard)
        resource.setrlimit(which, (cap, cap))
    # At the hard limit the kernel kills without a name for it, so the soft one comes first.
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (min(cpu, hard), hard))


def _listen(control: int, mine: int, deadline: float, room: int) -> tuple[int, bytes]:
    """What is said until it ends, and how it ended. Raises EOFError where the host is gone."""
    said = bytearray()
    poll = select.poll()
    poll.register(mine, select.POLLIN)
    poll.register(control, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(math.ceil(left * 1000)))
        if control in ready:
            raise EOFError
        if mine in ready:
            part = os.read(mine, 1 << 16)
            if not part:
                return ENDED, bytes(said)
            said += part
            if len(said) > room:
                return FULL, bytes(said[:room])
    return LATE, bytes(said)


def _wait(pid: int, deadline: float) -> tuple[int, float] | None:
    """Status and CPU seconds of a child that said its last word; None where it lives on.

    The end comes a moment after the last word.
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
    """Kills what is left of a run; wait status and CPU seconds of the last one."""
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # before it had a group
    if cell.level == 1:  # alone in its namespace, but for what a child may have left
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_RDWR)  # runs share it, and may have set its flags
    status, cpu_s = 0, 0.0
    for pid in children:
        _, status, used = os.wait4(pid, 0)
        cpu_s = used.ru_utime + used.ru_stime
    return status, cpu_s


def _holes(cell: Cell) -> str:
    """What a child can do that it must not, as tried; '' where it is confined as it should be."""
    if cell.level == UNCONFINED:
        return ""
    pid = os.fork()
    if not pid:
        try:
            cell.lock()
            os._exit(1 + _reached())
        finally:
            os._exit(_BROKEN)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 1:
        return ""
    names = [name for n, name in enumerate(ATTEMPTS) if 0 < code < _BROKEN and (code - 1) >> n & 1]
    return f"confined code could {', '.join(names) or f'not be started (status {code})'}"


def _reached() -> int:
    """A bit for each attempt that was not refused."""
    return sum(1 << n for n, attempt in enumerate(ATTEMPTS.values()) if _works(attempt))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PermissionError:
        return False
    return True


ATTEMPTS: dict[str, Callable[[], object]] = {
    "open a file": lambda: os.open("/", os.O_RDONLY),
    "look for a file": lambda: os.stat("/"),
    "open a socket": lambda: socket.socket(),
    "signal its parent": lambda: os.kill(os.getppid(), 0),
    "become another program": lambda: os.execv("/", ["/"]),
}


def _forget() -> None:
    """Takes out of reach what only the server needs; what is left is shared, not copied."""
    ours = ("orchestry", "ctypes", "_ctypes")
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    sys.executable, sys.orig_argv = "", []  # the names of this machine's folders
    gc.disable()
    gc.collect()
    gc.freeze()


def _address_space() -> int:
    """Bytes that this process has mapped; 0 on macOS, which knows no limit on them."""
    if sys.platform == "darwin":
        return 0
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
