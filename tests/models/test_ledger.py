"""The cap holds under every interleaving, and the journal always tells the same story."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.errors import BudgetExceeded, StoreError
from orchestry.core.types import Completion
from orchestry.models.ledger import Ledger
from orchestry.store import journal
from orchestry.store.journal import Answered, Event, Journal, Lost, Released, Reserved
from orchestry.store.summary import NANO, nano, replay


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
    assert await _open(tmp_path / "..", 0.0).reserve("k", 0.0) == 0


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
    assert Ledger.fold(events, bills).spent == nano(spent)
    resumed = _open(tmp_path, 1.0)
    kinds = [type(e) for e in resumed.end_open(bills, "killed")]
    assert kinds == [Lost if bills else Released]
    assert (resumed.spent, resumed.reserved) == (spent, 0.0)
    assert Ledger.fold(journal.read(tmp_path / "journal.jsonl"), bills).spent == nano(spent)
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
    assert Ledger.fold(journal.read(tmp_path / "journal.jsonl"), False).spent == nano(0.55)


def test_a_journal_with_a_line_taken_out_is_named() -> None:
    with pytest.raises(StoreError, match="call 3, which it never reserved"):
        replay([Released(call=3, why="")])


def _fill_disk(log: Journal) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._fd)
    os.close(full)


async def test_a_full_disk_refuses_the_call_and_keeps_the_ledger(tmp_path: Path) -> None:
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
        assert Ledger.fold(journal.read(path), bills).spent == team.billed


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
        assert Ledger.fold(kept, bills_unanswered=True).spent == sum(billed.values())


def test_nano_rounds_up_but_for_float_noise() -> None:
    assert [nano(x) for x in (0.0, 0.1 + 0.2, 1e-9, 1.2e-9, 1234.5)] == [
        0,
        300_000_000,
        1,
        2,
        int(1234.5 * NANO),
    ]
