"""A fork server's self-test: one warm-up run, and whether a child is confined."""

from __future__ import annotations

import linecache
import os
import socket
import sys
from collections.abc import Callable

from orchestry.sandbox.inside.candidate import answer_calls
from orchestry.sandbox.inside.tagged import dumps_record, pack
from orchestry.sandbox.inside.tester import run_test

_BROKEN = 70  # EX_SOFTWARE
_REHEARSALS = 16  # the interpreter optimises frequent code


def holes(lock: Callable[[], None]) -> str:
    """What a child could do although it must not; '' if `lock` confines it."""
    pid = os.fork()
    if not pid:
        try:
            lock()
            os._exit(1 + _reached())
        finally:
            os._exit(_BROKEN)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 1:
        return ""
    names = [name for n, name in enumerate(_ATTEMPTS) if 0 < code < _BROKEN and (code - 1) >> n & 1]
    return f"confined code could {', '.join(names) or f'not be started (status {code})'}"


def _reached() -> int:
    """One bit per attempt that was not refused."""
    return sum(1 << n for n, attempt in enumerate(_ATTEMPTS.values()) if _works(attempt))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PermissionError:
        return False
    return True


_ATTEMPTS: dict[str, Callable[[], object]] = {
    "open a file": lambda: os.open("/", os.O_RDONLY),
    "look for a file": lambda: os.stat("/"),
    "open a socket": lambda: socket.socket(),
    "signal its parent": lambda: os.kill(os.getppid(), 0),
    "become another program": lambda: os.execv("/", ["/"]),
}


def warm_up() -> None:
    """Runs a program as a child does, so that no child has to warm up this code.

    A child copies each page before it writes to it, and the interpreter writes to code and tables
    when it first runs them.
    """

    def say(record: bytes) -> None:
        pass

    def ask(_: bytes) -> bytes:
        return dumps_record({"verdict": "value", "value": b"[1,[]]"})

    bounds = {"call_s": 1.0, "output_kb": 1, "entry_point": "f"}
    calls = [pack((number,)) for number in range(8)]
    code = "def f(x):\n    return sum(int(digit) for digit in str(x))\n"
    test = "def check(f):\n    for x in (1, 2):\n        assert f(x) == x\n"
    for _ in range(_REHEARSALS):
        answer_calls({"code": code, "calls": calls, **bounds}, say)
        run_test({"test": test, **bounds}, ask, say)
    del sys.modules["candidate"]
    linecache.clearcache()
