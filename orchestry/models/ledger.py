"""The ledger: a hard cap in dollars over all calls of a run, even failed ones.

A call reserves its worst-case cost before it is sent and is then charged its real cost, so the
money spent plus the money reserved never exceeds the cap. Amounts are whole nano-dollars, because
sums of floats drift.

Waiting calls are served by rank, the oldest episode first: if money or call slots are short, a few
episodes finish instead of many starting. An episode's rank is its number in the run. Its claim is
the money it still needs; no episode starts that would starve an older one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import TypeVar

from orchestry.core.errors import BudgetExceeded, CallTooDear, OrchestryError
from orchestry.store.journal import Answered, Counted, Journal, Lost, Released, Reserved
from orchestry.store.summary import NANO, Balance, nano

_UNUSUAL = 4
"""Times the dearest call so far: a call that may cost more ends its sample, not the run."""


class Claims:
    """The costs of the episodes in flight.

    An episode's claim is the rest of its expected cost, plus the worst case of its dearest call,
    because a call is sent only if its worst case fits.
    """

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        """By rank: the cost of ended calls, and the worst case of open ones."""
        self._calls = self._guess = 0
        self._reserved = self._count = self._dearest = 0
        self.in_finished = self._finished = 0

    def foresee(self, calls: int, guess: int, total: int, finished: int) -> None:
        """What is known before the first episode: the most calls of an episode, a call's worst case
        as far as known, and the cost of episodes that earlier processes finished.
        """
        self._calls, self._guess = calls, guess
        self.in_finished, self._finished = total if finished else 0, finished

    @property
    def expected(self) -> int:
        """An episode's expected cost: the mean of finished ones.

        Before one has finished: its maximum number of calls at the mean worst case of those sent.
        The real cost of first calls says little about later or failing calls.
        """
        if self._finished:
            return self.in_finished // self._finished
        each = self._reserved // self._count if self._count else self._guess
        return self._calls * each

    def unusual(self, worst: int, left: int, cap: int) -> bool:
        """Whether a call that does not fit is out of the ordinary: the dearest so far would fit,
        and this one costs far more, or more than the whole cap. Before any call there is nothing
        ordinary, but what an episode of earlier processes cost."""
        ordinary = self._dearest or (self.expected if self._finished else 0)
        return 0 < ordinary <= left and worst > min(cap, _UNUSUAL * ordinary)

    def older(self, rank: int | None = None) -> int:
        """The claims of episodes older than this one, or of all."""
        expected = self.expected
        return sum(
            max(expected - used, 0) + self._dearest
            for other, used in self._used.items()
            if rank is None or other < rank
        )

    def covered(self, left: int) -> bool:
        """Whether another episode may start with so much money unspent and unreserved. If no other
        one runs, it always may, because the expected cost may be wrong.
        """
        return not self._used or left - self.older() >= self.expected + self._dearest

    def begin(self, rank: int) -> None:
        self._used[rank] = 0

    def end(self, rank: int, finished: bool) -> None:
        """An episode without paid calls (all answers known) says nothing about the others."""
        used = self._used.pop(rank)
        if finished and used:
            self.in_finished += used
            self._finished += 1

    def opened(self, rank: int, worst: int) -> None:
        if rank in self._used:
            self._used[rank] += worst
            self._reserved += worst
            self._count += 1
            self._dearest = max(self._dearest, worst)

    def lowered(self, rank: int, by: int) -> None:
        """A lost call turned out to cost less than its episode was charged."""
        if rank in self._used:
            self._used[rank] -= by


EndT = TypeVar("EndT", Answered, Released, Lost)


@dataclass(slots=True, eq=False)
class Places:
    """How many more calls to one provider may be in flight."""

    free: float = math.inf


@dataclass(slots=True, order=True)
class _Waiter:
    """Orders waiters by priority."""

    rank: int
    number: int
    key: str | None = field(compare=False)
    """None: an episode that waits to start."""
    usd: float = field(compare=False)
    check: Callable[[], None] = field(compare=False)
    granted: asyncio.Future[int] = field(compare=False)


class Ledger:
    """Reservations under one cap (None: no cap), served by rank, equal ranks in order of arrival.

    Every change is in the journal before it takes effect. `on_warn` gets one line per run, when
    `warn_share` of the cap is spent.
    """

    def __init__(
        self,
        cap_usd: float | None,
        journal: Journal,
        warn_share: float,
        on_warn: Callable[[str], None],
        balance: Balance | None = None,
    ) -> None:
        self.cap_usd = cap_usd
        self._cap: int | None = None
        if cap_usd is not None and not math.isinf(cap_usd):
            self._cap = math.floor(round(cap_usd * NANO, 3))
        self._journal = journal
        self._balance = balance or Balance()
        self._first = self._balance.calls
        self._claims = Claims()
        self._anywhere = Places()
        self._waiting: dict[Places, list[_Waiter]] = {}
        self._numbers = count()
        self._open_calls: dict[int, tuple[int, Places]] = {}
        self._on_warn = on_warn
        self._warn_at = None if self._cap is None else math.ceil(self._cap * warn_share)
        self._warned = self._past_warning()

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self._journal.path.parent

    @property
    def spent(self) -> float:
        """Dollars charged so far, including lost calls at their worst case."""
        return self._balance.spent / NANO

    @property
    def lost(self) -> float:
        """Dollars of calls that may have been billed although no answer came."""
        return self._balance.lost / NANO

    @property
    def in_finished(self) -> float:
        """Dollars charged to the episodes that finished."""
        return self._claims.in_finished / NANO

    @property
    def reserved(self) -> float:
        """The most dollars that the open calls may cost."""
        return self._balance.reserved / NANO

    def foresee(self, calls: int, usd: float, finished: int) -> None:
        """What is known before the first episode starts: an episode's maximum number of calls, a
        call's worst case in dollars, and how many episodes the money spent so far has finished.
        """
        self._claims.foresee(calls, nano(usd), self._balance.spent, finished)

    @asynccontextmanager
    async def episode(self, rank: int) -> AsyncIterator[None]:
        """An episode whose calls have this rank; younger episodes don't take the money it claims.

        Waits until the remaining money, minus the claims of those in flight, covers an episode's
        expected cost. A single episode never waits.
        """
        await self._wait(rank, None, 0.0, self._anywhere)
        finished = False
        try:
            yield
            finished = True
        finally:
            self._claims.end(rank, finished)
            self._serve()

    async def reserve(
        self,
        key: str,
        usd: float,
        rank: int = 0,
        places: Places | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Reserves up to `usd` for a call, in the journal, and returns the call's number.

        Takes one of `places` until the call ends. Waits for a place, and as long as money may still
        become free (open calls may cost less, older episodes may not use their claims). Raises
        BudgetExceeded when the call can't fit any more. When its turn comes, `check` may raise the
        OrchestryError that stops it.
        """
        return await self._wait(rank, key, usd, places or self._anywhere, check)

    def settle(self, answered: Answered, most: float = math.inf) -> None:
        """Charges an answered call its real cost. `answered.call` must be open.

        `most` is the most that an attempt at this request can cost, now that its input count is
        known; its lost attempts are charged no more than this.
        """
        rank, _ = self._open_calls.get(answered.call or 0, (-1, None))
        for call, usd in self._balance.lost_calls.get(answered.key, {}).items():
            if most < math.inf and nano(most) < usd:
                event = Counted(call=call, key=answered.key, usd=most)
                self._journal.append(event)
                self._balance.add(event)
                if call >= self._first:
                    self._claims.lowered(rank, usd - nano(most))
        self._close(answered)

    def note(self, answered: Answered) -> None:
        """Journals an answer without a call: from the cache, or for a prompt that is too long."""
        self._journal.append(answered)

    def release(self, call: int, why: str) -> Released:
        """Ends a call that was not charged."""
        return self._close(Released(call=call, why=why))

    def lose(self, call: int, why: str) -> Lost:
        """Ends a call that may have been billed; its worst case counts as spent."""
        return self._close(Lost(call=call, why=why))

    def end_open(self, bills_unanswered: bool, why: str) -> list[Lost | Released]:
        """Ends every call that an earlier process left open, also in the journal."""
        end = self.lose if bills_unanswered else self.release
        return [end(call, why) for call in sorted(self._balance.open)]

    async def _wait(
        self,
        rank: int,
        key: str | None,
        usd: float,
        places: Places,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heappush(
            self._waiting.setdefault(places, []),
            _Waiter(rank, next(self._numbers), key, usd, check, granted),
        )
        self._serve()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._serve()
            elif granted.exception() is None:  # its reservation was granted just before
                self._give_back(rank, key, granted.result())
            raise

    def _give_back(self, rank: int, key: str | None, call: int) -> None:
        if key is not None:
            self.release(call, "cancelled before it was sent")
        else:
            self._claims.end(rank, finished=False)
            self._serve()

    def _open(self, waiter: _Waiter, key: str, places: Places) -> int:
        event = Reserved(call=self._balance.calls, key=key, usd=waiter.usd)
        self._journal.append(event)
        self._balance.add(event)
        self._open_calls[event.call] = waiter.rank, places
        self._claims.opened(waiter.rank, nano(waiter.usd))
        places.free -= 1
        return event.call

    def _close(self, event: EndT) -> EndT:
        """Ends a call. If the disk refuses, a resume will count its worst case."""
        reserved, spent = self._balance.reserved, self._balance.spent
        self._balance.add(event)
        rank, places = self._open_calls.pop(event.call or 0, (-1, self._anywhere))
        places.free += 1
        worst = reserved - self._balance.reserved
        self._claims.lowered(rank, worst - (self._balance.spent - spent))
        try:
            self._journal.append(event)
        finally:
            self._serve()
        if not self._warned and self._past_warning():
            self._warned = True
            self._on_warn(f"${self.spent:.4g} of the budget of ${self.cap_usd:.4g} is spent")
        return event

    def _fits(self, waiter: _Waiter) -> bool:
        if self._cap is None:
            return True
        left = self._cap - self._balance.spent - self._balance.reserved
        if waiter.key is None:
            return self._claims.covered(left)
        return nano(waiter.usd) <= left - self._claims.older(waiter.rank)

    def _serve(self) -> None:
        """Grants waiting calls by rank, as far as slots and money allow; refuses those that can
        never fit. A call that waits for money blocks all younger ones; one that waits for a slot
        does not.
        """
        while heads := [(q[0], p, q) for p, q in self._waiting.items() if q and p.free > 0]:
            waiter, places, queue = min(heads, key=lambda head: head[0])
            if waiter.granted.cancelled():  # its task was cancelled
                heappop(queue)
            elif self._fits(waiter):
                heappop(queue)
                self._grant(waiter, places)
            elif waiter.key is not None and self._never_fits(waiter.usd):
                heappop(queue)
                waiter.granted.set_exception(self._refused(waiter.usd))
            else:
                return

    def _grant(self, waiter: _Waiter, places: Places) -> None:
        if waiter.key is None:
            self._claims.begin(waiter.rank)
            waiter.granted.set_result(0)
            return
        try:
            waiter.check()
            waiter.granted.set_result(self._open(waiter, waiter.key, places))
        except OrchestryError as error:  # raised to the waiter, not to the call that ended
            waiter.granted.set_exception(error)

    def _never_fits(self, usd: float) -> bool:
        """Whether the call can't fit even if every open call costs nothing."""
        return self._cap is not None and self._balance.spent + nano(usd) > self._cap

    def _refused(self, usd: float) -> OrchestryError:
        """Why a call that can't fit any more is not made: the run's end, unless others fit."""
        assert self._cap is not None
        if self._claims.unusual(nano(usd), self._cap - self._balance.spent, self._cap):
            return CallTooDear(
                f"a call could cost ${usd:.4g}, more than is left of the budget of "
                f"${self.cap_usd:.4g}, which covers other calls: shorten its prompt (reserved at "
                "one token per byte), or raise --budget in a new run"
            )
        enough = math.ceil(max(2 * (self.cap_usd or 0.0), self.spent + usd) * 100) / 100
        return BudgetExceeded(
            f"the next call could cost ${usd:.4g} and ${self.spent:.4g} of the budget of "
            f"${self.cap_usd:.4g} is spent; results are kept: continue with "
            f"`orchestry resume {self.folder} --budget {enough:g}`"
        )

    def _past_warning(self) -> bool:
        return self._warn_at is not None and 0 < self._warn_at <= self._balance.spent
