"""The ledger: a hard cap in dollars over all calls of a run, whatever happens to them.

A call reserves its worst case before it is sent and settles at its real cost, so what was spent
plus what is open never passes the cap. Amounts are whole nano-dollars: sums of floats drift.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orchestry.errors import BudgetExceeded, StoreError
from orchestry.journal import Answered, Event, Journal, Lost, Released, Reserved

NANO = 1_000_000_000
EndT = TypeVar("EndT", Answered, Released, Lost)


@dataclass(slots=True)
class Balance:
    """What a journal says was spent: the fold of its events. Amounts in nano-dollars."""

    settled: int = 0
    lost: int = 0
    reserved: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """Reservations without an end, by call number."""
    calls: int = 0
    """The number of the next call."""

    @property
    def spent(self) -> int:
        return self.settled + self.lost

    def add(self, event: Event) -> None:
        """Takes one event; the live ledger and a resume both go this way, so they can't differ.

        Raises StoreError for the end of a call that is not open.
        """
        if isinstance(event, Reserved):
            self.open[event.call] = nano(event.usd)
            self.reserved += nano(event.usd)
            self.calls = max(self.calls, event.call + 1)
        elif isinstance(event, Answered) and event.call is not None:
            self._end(event.call)
            self.settled += nano(event.completion.usd)
        elif isinstance(event, Released):
            self._end(event.call)
        elif isinstance(event, Lost):
            self.lost += self._end(event.call)

    def _end(self, call: int) -> int:
        if call not in self.open:
            raise StoreError(
                f"the journal ends call {call}, which it never reserved: a line was taken out of "
                "it; restore the file from a copy"
            )
        usd = self.open.pop(call)
        self.reserved -= usd
        return usd


@dataclass(slots=True, eq=False)
class _Waiter:
    key: str
    usd: float
    granted: asyncio.Future[int]


class Ledger:
    """Reservations under one cap; None is no cap. First come, first served.

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
        self._waiting: deque[_Waiter] = deque()
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
    def reserved(self) -> float:
        """Dollars that the open calls may cost at most."""
        return self._balance.reserved / NANO

    async def reserve(self, key: str, usd: float) -> int:
        """The number of a call that may cost up to `usd`; its reservation is in the journal.

        Waits while open calls could still settle lower; raises BudgetExceeded when the call can't
        fit any more.
        """
        if not self._waiting and self._fits(usd):
            return self._open(key, usd)
        waiter = _Waiter(key, usd, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._serve()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def settle(self, answered: Answered) -> None:
        """Charges an answered call its real cost. `answered.call` must be open."""
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

    def _open(self, key: str, usd: float) -> int:
        event = Reserved(call=self._balance.calls, key=key, usd=usd)
        self._journal.append(event)
        self._balance.add(event)
        return event.call

    def _close(self, event: EndT) -> EndT:
        """Ends a call. Where the disk refuses, a resume will count it at its worst case."""
        self._balance.add(event)
        try:
            self._journal.append(event)
        finally:
            self._serve()
        if not self._warned and self._past_warning():
            self._warned = True
            self._on_warn(f"${self.spent:.4g} of the budget of ${self.cap_usd:.4g} is spent")
        return event

    def _fits(self, usd: float) -> bool:
        if self._cap is None:
            return True
        return self._balance.spent + self._balance.reserved + nano(usd) <= self._cap

    def _serve(self) -> None:
        """Grants the waiting calls in order, as far as they fit; refuses those that never will."""
        while self._waiting:
            waiter = self._waiting[0]
            if waiter.granted.cancelled():  # its task has not run yet to leave
                self._waiting.popleft()
            elif self._fits(waiter.usd):
                self._waiting.popleft()
                self._grant(waiter)
            elif self._never_fits(waiter.usd):
                self._waiting.popleft()
                waiter.granted.set_exception(self._exceeded(waiter.usd))
            else:
                return

    def _grant(self, waiter: _Waiter) -> None:
        try:
            waiter.granted.set_result(self._open(waiter.key, waiter.usd))
        except StoreError as error:  # the waiter's to hear, not that of the call that just ended
            waiter.granted.set_exception(error)

    def _leave(self, waiter: _Waiter) -> None:
        """Forgets a cancelled waiter, and the reservation that it may have got just before."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            self._serve()
        elif not waiter.granted.cancelled() and waiter.granted.exception() is None:
            self.release(waiter.granted.result(), "cancelled before it was sent")

    def _never_fits(self, usd: float) -> bool:
        """Even if every open call were to cost nothing; and with none open, that is now."""
        return self._cap is not None and self._balance.spent + nano(usd) > self._cap

    def _exceeded(self, usd: float) -> BudgetExceeded:
        enough = math.ceil(max(2 * (self.cap_usd or 0.0), self.spent + usd) * 100) / 100
        return BudgetExceeded(
            f"the next call could cost ${usd:.4g} and ${self.spent:.4g} of the budget of "
            f"${self.cap_usd:.4g} is spent; results are kept: go on with "
            f"`orchestry resume {self.folder} --budget {enough:g}`"
        )

    def _past_warning(self) -> bool:
        return self._warn_at is not None and 0 < self._warn_at <= self._balance.spent


def replay(events: Iterable[Event]) -> Balance:
    """The balance of a journal, calls in flight still open."""
    balance = Balance()
    for event in events:
        balance.add(event)
    return balance


def nano(usd: float) -> int:
    """Whole nano-dollars, rounded up but for float noise.

    >>> nano(0.1 + 0.2), nano(1.2e-9)
    (300000000, 2)
    """
    return math.ceil(round(usd * NANO, 3))
