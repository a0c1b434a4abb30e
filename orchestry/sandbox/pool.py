"""The sandbox: fork servers, at most one per core, and a cache of results."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import marshal
import math
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from orchestry.core import extensions
from orchestry.core.distribution import install
from orchestry.core.errors import SandboxError
from orchestry.core.executor import Lost
from orchestry.core.secrets import Redactor
from orchestry.core.types import Call, CallResult, Limits
from orchestry.sandbox.inside import tagged
from orchestry.sandbox.inside.server import ENDED, UNCONFINED
from orchestry.sandbox.library import library
from orchestry.sandbox.results import run_room, verdicts
from orchestry.sandbox.worker import Ended, Unavailable, Worker

WASI = 3
"""The level of the extension of that name."""
LEVELS = {
    1: "own namespaces, no capabilities, Landlock and seccomp",
    2: "no capabilities, Landlock and seccomp; namespaces are forbidden here",
    WASI: "an interpreter in WebAssembly, with no file, network or process to reach",
    UNCONFINED: "limits alone; files, network and processes of this user are open to the code",
}
_MEMO = 4096
_MEMO_BYTES = 1 << 23  # as values they take up to ten times as much
_SHORT = 1 << 15
_NO_REFERENCES = 2  # marshal's version in which equal values are equal bytes
_CALL_SHARE = 0.5  # share of the run's CPU time, so that an endless call leaves time for the others
_MOST_SAID = 1 << 24
_TRIES = 2  # of a run whose server ended: twice is no accident
_PYTEST_S = 20.0  # in WebAssembly, where it is compiled for every run

_FOUND: dict[tuple[int, ...], tuple[int, str]] = {}
"""The level found, by levels tried; tested once per process."""

Results = tuple[CallResult, ...]


class Server(Protocol):
    """One that plays runs, one at a time; see worker.Worker."""

    facts: dict[str, Any]

    async def play(self, jobs: Sequence[dict[str, Any]], wall_s: float, room: int) -> Ended:
        """One run of one process per job. Raises ConnectionError if the server is gone."""
        ...

    async def close(self) -> None:
        """Ends the server and all its children."""
        ...


Start = Callable[[int], Awaitable[Server]]


class ForkServers:
    """Runs candidates in forks of warm, confined interpreters, at most one per core at a time.

    Servers start when needed, are replaced when they die, and end with `async with`. Equal runs are
    answered from the cache.
    """

    def __init__(
        self,
        limits: Limits,
        level: int | None = None,
        *,
        allow_unsafe: bool = False,
        workers: int | None = None,
        start: Start | None = None,
    ) -> None:
        """`start` starts a server at a level, on whatever machine; None: on this one."""
        self._limits = limits
        self._asked = level
        self._allow_unsafe = allow_unsafe
        self._level = 0
        self._workers = workers or os.cpu_count() or 1
        self._slots = asyncio.Semaphore(self._workers)
        self._start = start or start_server
        self._idle: list[Server] = []
        self._redactor = Redactor(os.environ)
        self._memo: OrderedDict[bytes, tuple[Results, int]] = OrderedDict()
        self._remembers = 0
        """Bytes of output in the cache."""
        self._closed = False
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self.level = "not opened"
        """The level and its meaning, for manifest and doctor."""

    async def __aenter__(self) -> ForkServers:
        """Finds the strongest level that this machine supports.

        Raises SandboxError if no level is available, or only the unconfined one and it was not
        allowed.
        """
        candidates = self._candidates()
        if candidates not in _FOUND:
            _FOUND[candidates] = await self._probe(candidates)
        self._level, self.level = _FOUND[candidates]
        return self

    async def _probe(self, candidates: tuple[int, ...]) -> tuple[int, str]:
        """The first level at which a server starts, and its line."""
        reasons = []
        for level in candidates:
            try:
                worker = await self._start(level)
            except Unavailable as error:
                reasons.append(f"level {level}: {error}")
            else:
                self._idle.append(worker)
                return level, _describe(worker.facts)
        why = "; ".join(reasons) or "there is no such level here"
        raise SandboxError(
            f"this machine can't confine the code that models write ({why}): use Linux 5.13 or "
            "newer, outside of containers that forbid Landlock; or "
            f"`{install('wasi')}`; or let such code do all that you may do with --allow-unsafe-code"
        )

    async def __aexit__(self, *exc: object) -> None:
        self._memo.clear()
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(worker.close() for worker in idle))

    @property
    def confined(self) -> bool:
        """Whether the code is confined from files, network and processes."""
        return self._level != UNCONFINED

    async def run(
        self, code: str, entry_point: str, calls: Sequence[Call], limits: Limits | None = None
    ) -> list[CallResult]:
        """One result per call, in order.

        A candidate's failure is an outcome. Raises SandboxError if the sandbox itself fails, and
        Untaggable for arguments that are not plain data.
        """
        limits = limits or self._limits
        args = [tagged.pack(call.args) for call in calls]
        job = {"code": code, "entry_point": entry_point, "calls": args, **_bounds(limits)}
        return list(await self._remembered([job], len(calls), limits))

    async def check(
        self, code: str, entry_point: str, test: str, limits: Limits | None = None
    ) -> CallResult:
        """Runs `check(candidate)` of `test` in a process beside the candidate's; see types.Sandbox.

        Raises SandboxError if the sandbox itself fails.
        """
        limits = limits or self._limits
        candidate = {"code": code, "entry_point": entry_point, **_bounds(limits)}
        jobs = [candidate, {"test": test, **_bounds(limits)}]
        (result,) = await self._remembered(jobs, 1, limits)
        return result

    async def pytest(self, code: str, test: str, limits: Limits | None = None) -> CallResult:
        """Runs a pytest file in a process beside the solution's; see types.Sandbox.

        Raises ConfigError if pytest is not installed, SandboxError if the sandbox itself fails.
        """
        limits = limits or self._limits
        if self._level == WASI:
            limits = limits.model_copy(update={"wall_s": limits.wall_s + _PYTEST_S})
        tester = {"test": test, "library": library(self._level != WASI), **_bounds(limits)}
        (result,) = await self._remembered([{"code": code, **_bounds(limits)}, tester], 1, limits)
        return result

    async def _remembered(
        self, jobs: Sequence[dict[str, Any]], calls: int, limits: Limits
    ) -> Results:
        key = hashlib.sha256(marshal.dumps([*jobs], _NO_REFERENCES)).digest()
        async with self._locks.setdefault(key, asyncio.Lock()):  # an equal run may be in progress
            if key in self._memo:
                self._memo.move_to_end(key)
                return self._memo[key][0]
            played = await self._play(jobs, calls, limits)
            results = await self._read(played, calls, limits)
            # A result that a busy machine cut off is not kept.
            if played.end == ENDED and played.status == 0:
                self._remember(key, results, len(played.said))
            return results

    async def _read(self, played: Ended, calls: int, limits: Limits) -> Results:
        """The results; long output is parsed outside the event loop."""
        if len(played.said) <= _SHORT:
            return tuple(verdicts(played, calls, limits, self._redactor))
        return tuple(await asyncio.to_thread(verdicts, played, calls, limits, self._redactor))

    def _remember(self, key: bytes, results: Results, size: int) -> None:
        self._memo[key] = results, size
        self._remembers += size
        while len(self._memo) > _MEMO or self._remembers > _MEMO_BYTES:
            self._remembers -= self._memo.popitem(last=False)[1][1]

    async def _play(self, jobs: Sequence[dict[str, Any]], calls: int, limits: Limits) -> Ended:
        """Runs on the first free server; if it dies, once more on a new one."""
        room = min(_MOST_SAID, run_room(calls, limits))
        async with self._slots:
            ended = 0
            while ended < _TRIES:
                server = await self._take()
                try:
                    played = await server.play(jobs, limits.wall_s, room)
                except Lost:  # with its machine, which says nothing of the program
                    await self._drop(server)
                    continue
                except ConnectionError:
                    await self._drop(server)
                    ended += 1
                    continue
                except BaseException:  # cancelled in the middle, so its next output is undefined
                    await self._drop(server)
                    raise
                await self._give(server)
                return played
        if not self.confined:
            return Ended(ENDED, signal.SIGKILL, b"")  # such code can kill its server
        raise SandboxError(
            "the sandbox's server ended twice during one run: look for a lack of memory "
            "(`dmesg`), or lower sandbox.memory_mb"
        )

    async def _take(self) -> Server:
        """A server for one run."""
        return self._idle.pop() if self._idle else await self._start(self._level)

    async def _give(self, server: Server) -> None:
        """After a run: it is free again."""
        if self._closed:
            await server.close()
        else:
            self._idle.append(server)

    async def _drop(self, server: Server) -> None:
        """It is of no use any more."""
        await server.close()

    def _candidates(self) -> tuple[int, ...]:
        levels = [1, 2] if sys.platform == "linux" else []
        allowed = [*levels, WASI, *[UNCONFINED] * self._allow_unsafe]
        return tuple(n for n in allowed if self._asked in (None, n))


async def start_server(level: int) -> Server:
    """A server of this machine that is confined and ready; see Worker.start."""
    if level == WASI:
        server: Server = await extensions.find("levels", "wasi").start()
        return server
    return await Worker.start(level)


@functools.lru_cache(64)
def _bounds(limits: Limits) -> dict[str, Any]:
    cpu = {"cpu_s": math.ceil(limits.cpu_s), "call_s": limits.cpu_s * _CALL_SHARE}
    return limits.model_dump() | cpu


def _describe(facts: dict[str, Any]) -> str:
    """One line: the level, its meaning, and the mechanisms behind it."""
    told = f"{facts['level']}: {LEVELS[facts['level']]}"
    if "landlock" in facts:
        told += f" ({facts['machine']}, Landlock ABI {facts['landlock']})"
    if "wasmtime" in facts:
        told += f" (CPython {facts['python']}, wasmtime {facts['wasmtime']})"
    return told
