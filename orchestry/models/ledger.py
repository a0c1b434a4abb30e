"""The ledger: a hard cap in dollars over all calls of a run, whatever happens to them.

A call reserves its worst case before it is sent and settles at its real cost, so what was spent
plus what is open never passes the cap. Amounts are whole nano-dollars: sums of floats drift.

Calls that wait are served by rank, the oldest episode's first: where money or places are short, few
episodes finish rather than many begin. An episode's rank is its number in the run: the lower, the
older. Its claim is what it still needs, so that none begins that would starve an older one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import TypeVar

from orchestry.core.errors import BudgetExceeded, OrchestryError
from orchestry.store.journal import Answered, Counted, Event, Journal, Lost, Released, Reserved
from orchestry.store.summary import NANO, Balance, nano, replay


class Claims:
    """The books of the episodes in flight.

    An episode's claim is what is left of its expectation, and one dearest call on top: a call is
    only sent where its worst case fits, so the last one needs more than it will cost.
    """

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        """By rank: what its ended calls cost, and what its open ones may cost."""
        self._calls = self._guess = 0
        self._reserved = self._count = self._dearest = 0
        self.in_finished = self._finished = 0

    def foresee(self, calls: int, guess: int, total: int, finished: int) -> None:
        """What is known before the first episode: the most calls of one, the most that a call may
        cost as far as can be told, and the cost of those that earlier processes finished.
        """
        self._calls, self._guess = calls, guess
        self.in_finished, self._finished = total if finished else 0, finished

    @property
    def expected(self) -> int:
        """What an episode costs: the mean of those that finished.

        Before one has, all calls that it can make, at the mean worst case of those sent: what an
        episode's first calls cost tells little of the later ones, and of those that will fail.
        """
        if self._finished:
            return self.in_finished // self._finished
        each = self._reserved // self._count if self._count else self._guess
        return self._calls * each

    def older(self, rank: int | None = None) -> int:
        """What the episodes older than this one, or all, may still claim."""
        expected = self.expected
        return sum(
            max(expected - used, 0) + self._dearest
            for other, used in self._used.items()
            if rank is None or other < rank
        )

    def covered(self, left: int) -> bool:
        """Whether another episode may begin with so much unspent and unreserved. If no other one
        runs, it always may: what it is expected to cost may be wrong.
        """
        return not self._used or left - self.older() >= self.expected + self._dearest

    def begin(self, rank: int) -> None:
        self._used[rank] = 0

    def end(self, rank: int, finished: bool) -> None:
        """One that took no paid call (all its answers were known) says nothing of the others."""
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
        """A call cost so much less than was charged to its episode until now."""
        if rank in self._used:
            self._used[rank] -= by


EndT = TypeVar("EndT", Answered, Released, Lost)


@dataclass(slots=True, eq=False)
class Places:
    """How many more calls to one provider may be open at once."""

    free: float = math.inf


@dataclass(slots=True, order=True)
class _Waiter:
    """In the order in which waiters are served."""

    rank: int
    number: int
    key: str | None = field(compare=False)
    """None: an episode that waits to begin."""
    usd: float = field(compare=False)
    check: Callable[[], None] = field(compare=False)
    granted: asyncio.Future[int] = field(compare=False)


class Ledger:
    """Reservations under one cap; None is no cap. Lowest rank first; equals as they came.

    Every change is in the journal before it takes effect. `on_warn` gets one line when
    `warn_share` of the cap is spent, once in a run.
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

    @staticmethod
    def fold(events: Iterable[Event], bills_unanswered: bool) -> Balance:
        """The balance of a journal that no process writes any more.

        A call in flight when its process died counts at its worst case where the vendor may have
        billed it, else not at all.
        """
        balance = replay(events)
        for call in list(balance.open):
            end = Lost(call=call, why="") if bills_unanswered else Released(call=call, why="")
            balance.add(end)
        return balance

    @property
    def folder(self) -> Path:
        """The run's directory."""
        return self._journal.path.parent

    @property
    def spent(self) -> float:
        """Dollars charged so far, calls lost at their worst case included."""
        return self._balance.spent / NANO

    @property
    def lost(self) -> float:
        """Dollars of calls that may have been charged although no answer came."""
        return self._balance.lost / NANO

    @property
    def in_finished(self) -> float:
        """Dollars charged to the episodes that finished."""
        return self._claims.in_finished / NANO

    @property
    def reserved(self) -> float:
        """Dollars that the open calls may cost at most."""
        return self._balance.reserved / NANO

    def foresee(self, calls: int, usd: float, finished: int) -> None:
        """What is known of an episode before the first one begins: the calls that it makes at
        most, dollars that one may cost, and how many episodes what was spent so far has finished.
        """
        self._claims.foresee(calls, nano(usd), self._balance.spent, finished)

    @asynccontextmanager
    async def episode(self, rank: int) -> AsyncIterator[None]:
        """An episode, whose calls have this rank: younger ones leave it what it may still need.

        Waits until what is left, less the claims of those in flight, covers what an episode is
        expected to cost; one alone never waits.
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
        """The number of a call that may cost up to `usd`; its reservation is in the journal.

        Takes one of `places` until the call ends. Waits for one, and while open calls could still
        settle lower or older episodes leave something of their claims; raises BudgetExceeded when
        the call can't fit any more. `check` raises the OrchestryError that keeps it from being
        sent when its turn has come.
        """
        return await self._wait(rank, key, usd, places or self._anywhere, check)

    def settle(self, answered: Answered, most: float = math.inf) -> None:
        """Charges an answered call its real cost. `answered.call` must be open.

        `most` is what any attempt at this request can have cost, now that its input is counted:
        those that were lost are charged no more.
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
        """Journals an answer that had no call: from the cache, or for a prompt too long to ask."""
        self._journal.append(answered)

    def release(self, call: int, why: str) -> Released:
        """Ends a call that was not charged."""
        return self._close(Released(call=call, why=why))

    def lose(self, call: int, why: str) -> Lost:
        """Ends a call that may have been charged: its worst case is spent."""
        return self._close(Lost(call=call, why=why))

    def end_open(self, bills_unanswered: bool, why: str) -> list[Lost | Released]:
        """Ends every call that an earlier process left open, in the journal too."""
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
            elif granted.exception() is None:  # it got what it waited for just before
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
        """Ends a call. Where the disk refuses, a resume will count it at its worst case."""
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
        """Grants the waiting calls by rank, as far as places and money go; refuses those that never
        will fit. What waits for money holds up all younger ones, what waits for a place does not.
        """
        while heads := [(q[0], p, q) for p, q in self._waiting.items() if q and p.free > 0]:
            waiter, places, queue = min(heads, key=lambda head: head[0])
            if waiter.granted.cancelled():  # its task gave up
                heappop(queue)
            elif self._fits(waiter):
                heappop(queue)
                self._grant(waiter, places)
            elif waiter.key is not None and self._never_fits(waiter.usd):
                heappop(queue)
                waiter.granted.set_exception(self._exceeded(waiter.usd))
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
        except OrchestryError as error:  # the waiter's to hear, not that of a call that ended
            waiter.granted.set_exception(error)

    def _never_fits(self, usd: float) -> bool:
        """Even if every open call were to cost nothing; and with none open, that is now."""
        return self._cap is not None and self._balance.spent + nano(usd) > self._cap

    def _exceeded(self, usd: float) -> BudgetExceeded:
        enough = math.ceil(max(2 * (self.cap_usd or 0.0), self.spent + usd) * 100) / 100
        return BudgetExceeded(
            f"the next call could cost ${usd:.4g} and ${self.spent:.4g} of the budget of "
            f"${self.cap_usd:.4g} is spent; results are kept: continue with "
            f"`orchestry resume {self.folder} --budget {enough:g}`"
        )

    def _past_warning(self) -> bool:
        return self._warn_at is not None and 0 < self._warn_at <= self._balance.spent
