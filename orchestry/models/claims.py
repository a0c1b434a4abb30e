"""Claims: what the episodes in flight still need, so that none begins that would starve an older.

An episode is known by its rank, its number in the run: the lower, the older. Amounts are whole
nano-dollars.
"""

from __future__ import annotations


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
