"""The cap holds under every interleaving, and the journal always tells the same story.

Where money is short, few episodes finish rather than many begin: ranks and claims.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.errors import BudgetExceeded, CallTooDear, Interrupted, StoreError
from orchestry.core.types import Completion
from orchestry.models.ledger import Ledger, Places
from orchestry.store import journal
from orchestry.store.journal import Answered, Event, Journal, Lost, Released, Reserved
from orchestry.store.summary import NANO, nano, replay
from tests.journals import balance_of


def _answered(call: int, usd: float) -> Answered:
    return Answered(
        call=call,
        key="k",
        agent="a",
        purpose="act",
        source="provider",
        completion=Completion(text="", model="m", usd=usd),
        at=0.0,
    )


def _open(folder: Path, cap: float | None, warnings: list[str] | None = None) -> Ledger:
    seen = [] if warnings is None else warnings
    path = folder / "journal.jsonl"
    earlier = replay(journal.read(path)) if path.exists() else None
    return Ledger(cap, Journal(path), 0.8, seen.append, earlier)


async def _step(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_the_reservation_is_on_disk_before_the_call(tmp_path: Path) -> None:
    call = await _open(tmp_path, 1.0).reserve("k", 0.25)
    assert list(journal.read(tmp_path / "journal.jsonl")) == [
        Reserved(call=call, key="k", usd=0.25)
    ]


async def test_a_call_waits_for_what_may_settle_lower(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    first = await ledger.reserve("a", 0.7)
    second = asyncio.create_task(ledger.reserve("b", 0.7))
    await _step()
    assert not second.done()
    ledger.settle(_answered(first, 0.3))
    assert await second == first + 1
    assert (ledger.spent, ledger.reserved) == (0.3, 0.7)


async def test_the_refusal_names_amounts_and_the_fix(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    ledger.settle(_answered(await ledger.reserve("a", 0.7), 0.65))
    with pytest.raises(BudgetExceeded, match=rf"\$0\.4 and \$0\.65 of .*\$1 .*resume {tmp_path} "):
        await ledger.reserve("b", 0.4)
    assert await ledger.reserve("c", 0.35) == 1


async def test_waiters_are_refused_once_nothing_can_settle_lower(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    first = await ledger.reserve("a", 0.7)
    waiting = [asyncio.create_task(ledger.reserve("b", usd)) for usd in (0.9, 0.2)]
    await _step()
    ledger.settle(_answered(first, 0.7))
    big, small = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(big, BudgetExceeded)
    assert small == first + 1


async def test_first_come_first_served(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    first = await ledger.reserve("a", 0.6)
    big = asyncio.create_task(ledger.reserve("big", 0.9))
    await _step()
    small = asyncio.create_task(ledger.reserve("small", 0.1))
    await _step()
    assert not small.done()
    ledger.release(first, "429")
    assert (await big, await small) == (first + 1, first + 2)


async def test_a_cancelled_waiter_leaves_no_trace_and_lets_the_next_in(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    await ledger.reserve("a", 0.6)
    big = asyncio.create_task(ledger.reserve("big", 0.9))
    await _step()
    small = asyncio.create_task(ledger.reserve("small", 0.1))
    await _step()
    big.cancel()
    assert await small == 1
    keys = [e.key for e in journal.read(tmp_path / "journal.jsonl") if isinstance(e, Reserved)]
    assert keys == ["a", "small"]


async def test_a_waiter_cancelled_as_it_is_granted_gives_its_money_back(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    first = await ledger.reserve("a", 0.9)
    waiter = asyncio.create_task(ledger.reserve("b", 0.9))
    await _step()
    ledger.release(first, "429")
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert ledger.reserved == 0.0
    assert isinstance(list(journal.read(tmp_path / "journal.jsonl"))[-1], Released)


async def test_a_waiter_cancelled_before_the_grant_is_passed_over(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    first = await ledger.reserve("a", 0.9)
    gone, stays = (asyncio.create_task(ledger.reserve(k, 0.9)) for k in "bc")
    await _step()
    gone.cancel()
    ledger.release(first, "429")
    assert await stays == 1
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_sums_do_not_drift(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    for _ in range(10):
        ledger.settle(_answered(await ledger.reserve("k", 0.1), 0.1))
    assert ledger.spent == 1.0
    with pytest.raises(BudgetExceeded):
        await ledger.reserve("k", 1e-9)


async def test_no_cap_and_free_calls_always_pass(tmp_path: Path) -> None:
    assert await _open(tmp_path, None).reserve("k", 1e6) == 0
    (tmp_path / "other").mkdir()
    assert await _open(tmp_path / "other", 0.0).reserve("k", 0.0) == 0


async def test_the_warning_comes_once_in_a_run(tmp_path: Path) -> None:
    seen: list[str] = []
    ledger = _open(tmp_path, 1.0, seen)
    for usd in (0.79, 0.02, 0.02):
        ledger.settle(_answered(await ledger.reserve("k", usd), usd))
    assert seen == ["$0.81 of the budget of $1 is spent"]
    resumed = _open(tmp_path, 1.0, seen)
    resumed.lose(await resumed.reserve("k", 0.1), "timeout")
    assert len(seen) == 1


@pytest.mark.parametrize(("bills", "spent"), [(True, 0.55), (False, 0.05)])
async def test_a_resume_ends_what_was_in_flight(tmp_path: Path, bills: bool, spent: float) -> None:
    ledger = _open(tmp_path, 1.0)
    ledger.settle(_answered(await ledger.reserve("a", 0.1), 0.05))
    await ledger.reserve("b", 0.5)
    events = list(journal.read(tmp_path / "journal.jsonl"))
    assert balance_of(events, bills).spent == nano(spent)
    resumed = _open(tmp_path, 1.0)
    kinds = [type(e) for e in resumed.end_open(bills, "killed")]
    assert kinds == [Lost if bills else Released]
    assert (resumed.spent, resumed.reserved) == (spent, 0.0)
    assert balance_of(journal.read(tmp_path / "journal.jsonl"), bills).spent == nano(spent)
    assert await resumed.reserve("c", 0.1) == 2


async def test_an_answer_counts_the_input_of_the_same_requests_lost_calls(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
    ledger.lose(await ledger.reserve("k", 0.5), "timeout")
    await ledger.reserve("k", 0.1)
    resumed = _open(tmp_path, 1.0)
    resumed.end_open(True, "killed")
    waiter = asyncio.create_task(resumed.reserve("other", 0.35))
    answered = await resumed.reserve("k", 0.2)
    await _step()
    assert (resumed.lost, waiter.done()) == (0.6, False)
    resumed.settle(_answered(answered, 0.15), most=0.3)
    assert (resumed.lost, resumed.spent) == (0.4, 0.55)
    assert await waiter == answered + 1
    assert balance_of(journal.read(tmp_path / "journal.jsonl"), False).spent == nano(0.55)


def test_a_journal_with_a_line_taken_out_is_named() -> None:
    with pytest.raises(StoreError, match="call 3, which it never reserved"):
        replay([Released(call=3, why="")])


def _fill_disk(log: Journal) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._fd)
    os.close(full)


async def test_a_full_disk_refuses_the_call_and_keeps_the_open(tmp_path: Path) -> None:
    log = Journal(tmp_path / "journal.jsonl")
    ledger = Ledger(1.0, log, 0.8, print)
    first = await ledger.reserve("k", 0.9)
    waiter = asyncio.create_task(ledger.reserve("k", 0.9))
    await _step()
    _fill_disk(log)
    with pytest.raises(StoreError, match="free space"):
        ledger.release(first, "429")
    with pytest.raises(StoreError, match="free space"):
        await waiter
    assert ledger.reserved == 0.0


# --- any interleaving -----------------------------------------------------------------------------


class _Team:
    """Many calls at once on one ledger, each with a random fate."""

    def __init__(self, ledger: Ledger, cap: float, seed: int) -> None:
        self.ledger, self.cap, self.random = ledger, cap, random.Random(seed)
        self.billed = 0
        self.refused = 0

    async def call(self, usd: float) -> None:
        try:
            call = await self.ledger.reserve("k", usd)
        except BudgetExceeded:
            self.refused += 1
            return
        self.check()
        fate = self.random.choice(("settle", "release", "lose", "cancelled"))
        try:
            await asyncio.sleep(0 if self.random.random() < 0.5 else 0.001 * self.random.random())
        except asyncio.CancelledError:
            fate = "cancelled"
            raise
        finally:
            self.end(call, fate, usd)

    def end(self, call: int, fate: str, usd: float) -> None:
        if fate == "settle":
            cost = usd * self.random.random()
            self.billed += nano(cost)
            self.ledger.settle(_answered(call, cost))
        elif fate == "release":
            self.ledger.release(call, "429")
        else:
            self.billed += nano(usd)
            self.ledger.lose(call, fate)
        self.check()

    def check(self) -> None:
        assert nano(self.ledger.spent) + nano(self.ledger.reserved) <= nano(self.cap)


async def _play(path: Path, cap: float, usds: list[float], seed: int) -> None:
    ledger = Ledger(cap, Journal(path), 0.8, lambda _: None)
    team = _Team(ledger, cap, seed)
    rng = random.Random(seed)
    tasks = [asyncio.create_task(team.call(usd)) for usd in usds]
    for task in tasks:
        if rng.random() < 0.2:
            await _step(rng.randrange(4))
            task.cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    faults = [o for o in outcomes if isinstance(o, BaseException)]
    assert all(isinstance(fault, asyncio.CancelledError) for fault in faults)
    assert team.billed <= nano(cap)
    assert (nano(ledger.spent), ledger.reserved) == (team.billed, 0.0)
    for bills in (True, False):
        assert balance_of(journal.read(path), bills).spent == team.billed


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.001, 2.0),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40),
    st.integers(0, 10**6),
)
def test_no_interleaving_passes_the_cap(cap: float, usds: list[float], seed: int) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_play(Path(folder) / "j", cap, usds, seed))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("alro"), st.floats(0, 1))), st.data())
def test_a_cut_at_any_byte_never_forgets_a_bill(
    calls: list[tuple[float, str, float]], data: st.DataObject
) -> None:
    """The server bills when a request arrives, so after its reservation and before its answer."""
    events: list[Event] = []
    for number, (usd, fate, share) in enumerate(calls):
        events.append(Reserved(call=number, key="k", usd=usd))
        if fate == "a":
            events.append(_answered(number, usd * share))
        elif fate == "l":
            events.append(Lost(call=number, why="timeout"))
        elif fate == "r":
            events.append(Released(call=number, why="429"))
    raw = before = b""
    for event in events:
        before = journal.encode(event, int(before[-11:-3] or b"0", 16))
        raw += before
    cut = data.draw(st.integers(0, len(raw)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        path.write_bytes(raw[:cut])
        kept = list(journal.read(path))
        billed = {e.call: nano(e.usd) for e in kept if isinstance(e, Reserved)}
        for event in kept:
            if isinstance(event, Answered):
                billed[event.call or 0] = nano(event.completion.usd)
            elif isinstance(event, Released):
                billed[event.call] = 0
        assert balance_of(kept, bills_unanswered=True).spent == sum(billed.values())


def test_nano_rounds_up_but_for_float_noise() -> None:
    assert [nano(x) for x in (0.0, 0.1 + 0.2, 1e-9, 1.2e-9, 1234.5)] == [
        0,
        300_000_000,
        1,
        2,
        int(1234.5 * NANO),
    ]


async def _soon(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_the_oldest_episode_is_served_first(tmp_path: Path) -> None:
    ledger = _open(tmp_path, 1.0)
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
    ledger, places = _open(tmp_path, None), Places(1)
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
    ledger, places = _open(tmp_path, None), Places(1)
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
    ledger = _open(tmp_path, 1.0)
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
    ledger, begun = _open(tmp_path, 1.0), list[int]()
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
                                if isinstance(end, BaseException) and not isinstance(
                                    end, CallTooDear
                                ):
                                    raise end
                    finished += 1
                except BudgetExceeded:
                    stopped = True
                    return

        with TemporaryDirectory() as folder:
            ledger = _open(Path(folder), self.cap)
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


@given(
    usual=st.integers(1, 10**6),
    times=st.floats(0.1, 1000),
    cap=st.integers(1, 10**9),
    spent=st.floats(0, 1),
)
async def test_one_call_out_of_the_ordinary_does_not_end_the_run(
    tmp_path_factory: pytest.TempPathFactory, usual: int, times: float, cap: int, spent: float
) -> None:
    """While calls as they were so far still fit, one that can't is refused alone."""
    ledger = _open(tmp_path_factory.mktemp("run"), cap / 1e6)
    worst = round(usual * times)
    async with ledger.episode(0):
        try:
            first = await ledger.reserve("usual", usual / 1e6)
        except BudgetExceeded:
            return
        ledger.settle(_answered(first, usual * spent / 1e6))
        left = cap - usual * spent
        try:
            await ledger.reserve("big", worst / 1e6)
        except CallTooDear:
            assert worst > left >= usual - 1  # amounts are rounded
            assert worst > min(4 * usual, cap)
            assert await ledger.reserve("another", usual / 1e6) == first + 1
        except BudgetExceeded:
            assert worst > left - 1
            assert left < usual + 1 or worst <= min(4 * usual, cap) + 1


async def test_a_first_call_above_the_cap_ends_the_run(tmp_path: Path) -> None:
    """A guess says of no call that it fits, so the user is told what the run needs."""
    ledger = _open(tmp_path, 0.001)
    ledger.foresee(4, 0.0001, 0)
    async with ledger.episode(0):
        with pytest.raises(BudgetExceeded, match=r"resume .* --budget 0\.01"):
            await ledger.reserve("first", 0.01)
