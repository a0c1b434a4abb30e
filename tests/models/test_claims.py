"""Ranks and claims: where money is short, few episodes finish rather than many begin."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.errors import BudgetExceeded, Interrupted
from orchestry.core.types import Completion
from orchestry.models.ledger import Ledger, Places
from orchestry.store.journal import Answered, Journal
from orchestry.store.summary import nano


def _answered(call: int, usd: float) -> Answered:
    said = Completion(text="", model="m", usd=usd)
    return Answered(
        call=call, key="k", agent="a", purpose="act", source="provider", completion=said, at=0.0
    )


def _ledger(folder: Path, cap: float | None) -> Ledger:
    return Ledger(cap, Journal(folder / "journal.jsonl"), 1.0, lambda _: None)


async def _soon(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_the_oldest_episode_is_served_first(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path, 1.0)
    first = await ledger.reserve("a", 0.9, rank=9)
    ranks, served = [5, 2, 7, 2], list[tuple[int, int]]()

    async def ask(rank: int, number: int) -> None:
        call = await ledger.reserve("k", 0.9, rank)
        served.append((rank, number))
        ledger.release(call, "429")

    waiting = [asyncio.create_task(ask(rank, number)) for number, rank in enumerate(ranks)]
    await _soon()
    ledger.release(first, "429")
    await asyncio.gather(*waiting)
    assert served == [(2, 1), (2, 3), (5, 0), (7, 2)]


async def test_places_go_to_the_oldest_and_come_back_with_the_end_of_a_call(tmp_path: Path) -> None:
    ledger, places = _ledger(tmp_path, None), Places(1)
    first = await ledger.reserve("a", 0.1, 9, places)
    young, old = (asyncio.create_task(ledger.reserve("k", 0.1, r, places)) for r in (5, 2))
    await _soon()
    assert not young.done()
    assert not old.done()
    elsewhere = await ledger.reserve("k", 0.1, 7, Places(1))
    assert elsewhere == 1
    ledger.settle(_answered(first, 0.1))
    assert await old == 2
    assert not young.done()
    ledger.lose(2, "timeout")
    assert await young == 3


async def test_a_call_that_may_not_be_sent_any_more_is_not_reserved(tmp_path: Path) -> None:
    ledger, places = _ledger(tmp_path, None), Places(1)
    first = await ledger.reserve("a", 0.1, 0, places)

    def shut() -> None:
        raise Interrupted("stop")

    late = asyncio.create_task(ledger.reserve("k", 0.1, 1, places, shut))
    await _soon()
    ledger.release(first, "429")
    with pytest.raises(Interrupted):
        await late
    assert ledger.reserved == 0.0
    assert await ledger.reserve("k", 0.1, 2, places) == 1


async def test_younger_calls_leave_older_episodes_what_they_still_need(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path, 1.0)
    ledger.foresee(calls=3, usd=0.1, finished=0)
    async with ledger.episode(0), ledger.episode(1):
        await ledger.reserve("old", 0.1, 0)  # claims 0.3, and a dearest call of 0.1 on top
        await ledger.reserve("young", 0.55, 1)
        late = asyncio.create_task(ledger.reserve("young", 0.1, 1))
        await _soon()
        assert not late.done()
        await ledger.reserve("old", 0.1, 0)
        await ledger.reserve("old", 0.1, 0)
        late.cancel()


async def test_an_episode_begins_where_its_expectation_is_left_and_one_alone_always(
    tmp_path: Path,
) -> None:
    ledger, begun = _ledger(tmp_path, 1.0), list[int]()
    ledger.foresee(calls=4, usd=0.1, finished=0)
    go = [asyncio.Event() for _ in range(4)]

    async def play(rank: int) -> None:
        async with ledger.episode(rank):
            begun.append(rank)
            await go[rank].wait()
            ledger.settle(_answered(await ledger.reserve("k", 0.4, rank), 0.4))

    tasks = [asyncio.create_task(play(rank)) for rank in range(4)]
    await _soon()
    assert begun == [0, 1]
    go[0].set()
    await _soon(9)
    assert begun == [0, 1]  # 0.4 spent and claimed each, and the dearest call twice: none is left
    go[1].set()
    await _soon(9)
    assert begun == [0, 1, 2]  # alone, though 0.2 will not do
    for event in go:
        event.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends[2:]] == [BudgetExceeded, BudgetExceeded]


# --- any episodes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Episodes of stages of calls, each with its worst case and its cost, and how they ended."""

    episodes: list[list[list[tuple[float, float]]]]
    cap: float
    seed: int

    async def play(self, width: int, cancel: float = 0.0) -> int:
        """How many episodes finish with so many in flight, under the invariants."""
        rng, queue, finished = random.Random(self.seed), iter(range(len(self.episodes))), 0
        places = Places(rng.randint(1, 6))
        stopped = False

        async def call(ledger: Ledger, rank: int, worst: float, usd: float) -> None:
            number = await ledger.reserve("k", worst, rank, places)
            assert nano(ledger.spent) + nano(ledger.reserved) <= nano(self.cap)
            try:
                await _soon(rng.randrange(6))
            except asyncio.CancelledError:
                ledger.lose(number, "cancelled")
                raise
            ledger.settle(_answered(number, usd))

        async def work(ledger: Ledger) -> None:
            nonlocal finished, stopped
            for rank in queue:
                try:
                    async with ledger.episode(rank):
                        if stopped:
                            return
                        for stage in self.episodes[rank]:
                            calls = [call(ledger, rank, *each) for each in stage]
                            ends = await asyncio.gather(*calls, return_exceptions=True)
                            for end in ends:
                                if isinstance(end, BaseException):
                                    raise end
                    finished += 1
                except BudgetExceeded:
                    stopped = True
                    return

        with TemporaryDirectory() as folder:
            ledger = _ledger(Path(folder), self.cap)
            most = max(sum(map(len, episode)) for episode in self.episodes)
            ledger.foresee(most, 1.0, 0)
            workers = [asyncio.create_task(work(ledger)) for _ in range(width)]
            for worker in workers:
                if rng.random() < cancel:
                    await _soon(rng.randrange(30))
                    worker.cancel()
            outcomes = await asyncio.wait_for(asyncio.gather(*workers, return_exceptions=True), 9)
            faults = [o for o in outcomes if isinstance(o, BaseException)]
            assert all(isinstance(fault, asyncio.CancelledError) for fault in faults)
            assert ledger.reserved == 0.0
        return finished


def _runs() -> st.SearchStrategy[Run]:
    call = st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0)).map(lambda c: (c[0], c[0] * c[1]))
    episode = st.lists(st.lists(call, min_size=1, max_size=4), min_size=1, max_size=4)
    episodes = st.lists(episode, min_size=1, max_size=12)
    return st.builds(Run, episodes, st.floats(0.1, 20.0), st.integers(0, 10**6))


@settings(max_examples=25, deadline=None)
@given(_runs(), st.integers(1, 8))
def test_every_waiter_is_served_or_refused_and_the_cap_holds(run: Run, width: int) -> None:
    """Also where workers are cancelled at any moment; a waiter left behind would time out."""
    asyncio.run(run.play(width, cancel=0.5))


def _alike(seed: int) -> Run:
    """Episodes of one task: stages of samples, each with a cost of its own, and worst cases of
    about three times that. The cap is worth 3 to 15 of them."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 6) for _ in range(rng.randint(2, 6))]

    def call() -> tuple[float, float]:
        worst = rng.uniform(0.8, 1.2)
        return worst, worst * min(1.0, rng.lognormvariate(-1.2, 0.5))

    episodes = [[[call() for _ in range(size)] for size in sizes] for _ in range(20)]
    total = sum(usd for episode in episodes for stage in episode for _, usd in stage)
    return Run(episodes, total / 20 * rng.uniform(3, 15), seed)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_many_at_once_finish_as_many_as_one_at_a_time_but_for_one(seed: int, width: int) -> None:
    run = _alike(seed)
    alone = asyncio.run(run.play(1))
    assert asyncio.run(run.play(width)) >= alone - 1
