"""A sandbox whose servers are on other machines: they may wait for room there, and be lost."""

from __future__ import annotations

import asyncio

from orchestry.core.errors import OrchestryError, SandboxError
from orchestry.core.executor import Lost
from orchestry.core.types import Limits
from orchestry.sandbox.pool import ForkServers, Server, Start
from orchestry.sandbox.worker import Unavailable

_AGAIN_S = 1.0
"""Between two starts, if a machine was lost."""


class Elsewhere(ForkServers):
    """Servers are started in the background, as many as `workers`. A run takes whichever is free
    first, and a lost server is replaced."""

    def __init__(
        self,
        limits: Limits,
        start: Start,
        *,
        workers: int,
        room_s: float,
        allow_unsafe: bool = False,
    ) -> None:
        """`start` raises Lost if the machine is lost meanwhile. `room_s`: how long a run waits
        while there is no server at all."""
        super().__init__(limits, allow_unsafe=allow_unsafe, workers=workers, start=start)
        self._room_s = room_s
        self._free = asyncio.Queue[Server | OrchestryError]()
        self._starting = set[asyncio.Task[None]]()
        self.servers = set[Server]()
        """Those that are there."""

    async def __aenter__(self) -> Elsewhere:
        """See ForkServers; the level is that of the first machine, and all must allow it."""
        try:
            async with asyncio.timeout(self._room_s):
                self._level, self.level = await self._probe(self._candidates())
        except TimeoutError:
            raise self._no_room() from None
        while self._idle:
            self.servers.add(server := self._idle.pop())
            self._free.put_nowait(server)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in (starting := [*self._starting]):
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await super().__aexit__(*exc)
        await asyncio.gather(*(server.close() for server in self.servers))
        self.servers.clear()

    async def _take(self) -> Server:
        if self._free.empty() and len(self.servers) + len(self._starting) < self._workers:
            self._begin()
        while True:
            try:
                async with asyncio.timeout(self._room_s):
                    found = await self._free.get()
            except TimeoutError:
                if self.servers:  # all are at work
                    continue
                raise self._no_room() from None
            if isinstance(found, OrchestryError):
                raise found
            return found

    async def _give(self, server: Server) -> None:
        self._free.put_nowait(server)

    async def _drop(self, server: Server) -> None:
        self.servers.discard(server)
        self._begin()
        await server.close()

    def _begin(self) -> None:
        """Another server, which is free when it is there."""
        task = asyncio.create_task(self._started())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _started(self) -> None:
        while True:
            try:
                server = await self._start(self._level)
            except Lost:
                await asyncio.sleep(_AGAIN_S)
                continue
            except Unavailable as error:
                self._free.put_nowait(
                    SandboxError(
                        f"a machine can't confine code as the first one does ({error}): make them "
                        "alike, or leave that machine out"
                    )
                )
            except OrchestryError as error:
                self._free.put_nowait(error)
            else:
                self.servers.add(server)
                self._free.put_nowait(server)
            return

    def _no_room(self) -> SandboxError:
        return SandboxError(
            f"the cluster had no free CPU for the sandbox within {self._room_s:.0f} s: add a "
            "machine, see `ray status`, or go on without it (`resume --set executor=local`)"
        )
