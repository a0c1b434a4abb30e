"""A policy that waits until every episode has sent its requests, and answers them in one batch.

So one stage of all episodes of an update is one batch. A batch depends only on the episodes, not on
how long their rewards took: a resumed run draws the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from orchestry.core.types import Completion, Problem, Request, Tree
from orchestry.rollout.rollout import Rollout

Draw = Callable[[Sequence[Request], int], Awaitable[list[list[Completion]]]]
"""`n` samples of every request, in order."""


@dataclass(frozen=True, slots=True)
class _Asked:
    requests: Sequence[Request]
    n: int
    answer: asyncio.Future[list[list[Completion]]]


class Lockstep:
    """A Policy that uses `draw`; every episode plays inside `playing()`."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._playing = 0
        self._asked = list[_Asked]()
        self._batch: asyncio.Task[None] | None = None

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Wraps an episode; until it ends, the others wait for its requests."""
        self._playing += 1
        try:
            yield
        finally:
            self._playing -= 1
            self._check()

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy. Raises what `draw` raises."""
        loop = asyncio.get_running_loop()
        mine = _Asked(requests, n, loop.create_future())
        self._asked.append(mine)
        loop.call_soon(self._check)  # episodes that start right now come first
        return await mine.answer

    def _check(self) -> None:
        # Cancelled ones are left out.
        self._asked = [one for one in self._asked if not one.answer.done()]
        if self._asked and len(self._asked) >= self._playing:
            asked, self._asked = self._asked, []
            self._batch = asyncio.get_running_loop().create_task(self._answer(asked))

    async def _answer(self, asked: list[_Asked]) -> None:
        asked.sort(key=lambda one: [request.seed for request in one.requests])
        try:
            for n in sorted({one.n for one in asked}):
                together = [one for one in asked if one.n == n]
                found = await self._draw([r for one in together for r in one.requests], n)
                answers = iter(found)
                for one in together:
                    if not one.answer.done():
                        one.answer.set_result([next(answers) for _ in one.requests])
        except Exception as error:
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep(Rollout[Any]):
    """A rollout in lockstep with the others of its update."""

    in_step = True

    lockstep: Lockstep

    async def play(self, problem: Problem, seed: int) -> Tree[Any]:
        """See Rollout.play."""
        with self.lockstep.playing():
            return await Rollout.play(self, problem, seed)
