"""One door to a model: nothing is paid twice, nothing paid is lost, and the cap holds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry import journal
from orchestry.config import RunConfig, validate
from orchestry.errors import BudgetExceeded, Interrupted, ProviderError
from orchestry.journal import Answered, Journal, Lost, Released, Reserved
from orchestry.keys import request_digest
from orchestry.services.gateway import MAX_CHARS, Gateway, clean, open_gateway
from orchestry.services.ledger import Ledger, nano
from orchestry.services.prices import price_table
from orchestry.types import Completion, Message, Provider, Request

INPUT, OUTPUT = 10, 20
"""Tokens of every answer; a token costs a micro-dollar."""
USD = (INPUT + OUTPUT) / 1e6
WORST = (2 * INPUT + 2 * OUTPUT) / 1e6
Act = Callable[[Request], Awaitable[str]]


def _ask(text: str = "hello", seed: int = 7) -> Request:
    return Request(
        agent="writer",
        model="m",
        messages=(Message(role="user", content=text),),
        max_tokens=2 * OUTPUT,
        seed=seed,
    )


class Server:
    """A provider and its vendor in one: bills every request that reaches it, then acts."""

    name, base_url, model = "server", "", "m"
    deterministic, cacheable, bills_unanswered = True, True, True

    def __init__(self, act: Act | None = None, leading: bool = False) -> None:
        self.act = act
        self.leading = leading
        self.billed_usd = 0.0
        self.asked: list[Request] = []
        self.shared: list[bool] = []
        self.now = 0
        self.most = 0

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        self.asked.append(request)
        self.shared.append(shared)
        self.billed_usd += USD
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            text = await self.act(request) if self.act else ""
        except ProviderError as error:
            self.billed_usd -= 0.0 if error.billed else USD
            raise
        finally:
            self.now -= 1
        if started is not None:
            started()
        await asyncio.sleep(0)
        return Completion(
            text=text or f"{request.messages[0].content} {request.sample_index} {request.seed}",
            model="m",
            input_tokens=INPUT,
            output_tokens=OUTPUT,
        )

    def input_bound(self, request: Request) -> int:
        return 2 * INPUT

    def leads(self, request: Request) -> bool:
        return self.leading

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


def _fault(*, transient: bool = True, billed: bool = False) -> ProviderError:
    return ProviderError("no luck", transient=transient, billed=billed)


def _config(folder: Path, **changes: Any) -> RunConfig:
    raw: dict[str, Any] = {
        "prices": {"m": {"input": 1.0, "output": 1.0}},
        "cache": {"dir": folder / "cache"},
        "retry": {"attempts": 3, "base_s": 0.0},
        "budget": {"usd": 1.0},
    }
    return validate(raw | changes)


class Run:
    """A run directory whose processes come and go."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.path = folder / "journal.jsonl"
        self.config = _config(folder, **changes)
        self.warnings: list[str] = []
        self.waits: list[float] = []

    @property
    def events(self) -> list[journal.Event]:
        return list(journal.read(self.path)) if self.path.exists() else []

    @asynccontextmanager
    async def open(self, server: Provider) -> AsyncIterator[Gateway]:
        log = Journal(self.path)
        prices = price_table(server, self.config)
        try:
            async with open_gateway(
                self.config,
                server,
                prices,
                log,
                self.events,
                on_warn=self.warnings.append,
                sleep=self.sleep,
            ) as gateway:
                yield gateway
        finally:
            log.close()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def _kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events]


async def _step(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


# --- what is asked, and what is not ---------------------------------------------------------------


async def test_samples_differ_in_index_and_seed_and_come_in_order(run: Run) -> None:
    server = Server()
    async with run.open(server) as gateway:
        rows = await gateway.sample([_ask("a"), _ask("b"), _ask("a", seed=8)], 3)
    assert [[c.text.split()[:2] for c in row] for row in rows] == [
        [[name, str(j)] for j in range(3)] for name in "aba"
    ]
    assert len({request.seed for request in server.asked}) == 6
    assert len({request_digest(request) for request in server.asked}) == 9
    assert all(0 <= request.seed < 2**63 for request in server.asked)


async def test_an_answer_is_priced_journaled_and_counted(run: Run) -> None:
    async with run.open(Server()) as gateway:
        answer = await gateway.answer(_ask())
        (row,) = gateway.usage()
        assert (gateway.ledger.spent, gateway.ledger.reserved) == (USD, 0.0)
    assert answer.usd == pytest.approx(USD)
    assert (row.agent, row.purpose, row.calls, row.cache_hits) == ("writer", "act", 1, 0)
    assert (row.input_tokens, row.output_tokens, row.usd) == (INPUT, OUTPUT, USD)
    reserved, answered = run.events
    assert isinstance(reserved, Reserved)
    assert isinstance(answered, Answered)
    assert reserved.call == answered.call
    assert reserved.usd == pytest.approx(6e-5)
    assert (answered.source, answered.completion) == ("provider", answer)


async def test_the_reservation_is_on_disk_when_the_request_leaves(run: Run) -> None:
    seen: list[list[str]] = []

    async def look(request: Request) -> str:
        seen.append(_kinds(run))
        return ""

    async with run.open(Server(look)) as gateway:
        await gateway.answer(_ask())
    assert seen == [["reserved"]]


async def test_one_run_asks_once_even_without_a_cache(tmp_path: Path) -> None:
    run = Run(tmp_path, cache={"enabled": False})
    server = Server()
    async with run.open(server) as gateway:
        together = await asyncio.gather(*(gateway.answer(_ask()) for _ in range(5)))
        later = await gateway.answer(_ask())
    async with run.open(server) as gateway:
        resumed = await gateway.answer(_ask())
    assert {a.model_dump_json() for a in [*together, later, resumed]} == {later.model_dump_json()}
    assert len(server.asked) == 1
    assert _kinds(run) == ["reserved", "answered"]


async def test_another_run_finds_it_in_the_cache_for_nothing(tmp_path: Path) -> None:
    server = Server()
    config = {"cache": {"dir": tmp_path / "shared"}}
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, **config)
        async with run.open(server) as gateway:
            rows = await gateway.sample([_ask()], 4)
            texts.append([c.text for c in rows[0]])
            usage = gateway.usage()[0]
            spent = gateway.ledger.spent
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 4
    assert len(server.asked) == 4
    assert (usage.calls, usage.cache_hits, usage.usd, spent) == (0, 4, 0.0, 0.0)
    assert {(e.source, e.call, e.completion.usd) for e in run.events if e.kind == "answered"} == {
        ("cache", None, 0.0)
    }


async def test_a_private_provider_leaves_the_cache_alone(run: Run) -> None:
    server = Server()
    server.cacheable = False
    async with run.open(server) as gateway:
        await gateway.answer(_ask())
    assert not (run.folder / "cache").exists()


async def test_a_failed_twin_does_not_fail_the_one_that_waits(run: Run) -> None:
    failures = [_fault(transient=False)]

    async def act(request: Request) -> str:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        return "fine"

    async with run.open(Server(act)) as gateway:
        first, second = await asyncio.gather(
            gateway.answer(_ask()), gateway.answer(_ask()), return_exceptions=True
        )
    assert isinstance(first, ProviderError)
    assert isinstance(second, Completion)
    assert second.text == "fine"


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("billed", "kind"), [(True, "lost"), (False, "released")])
async def test_a_passing_failure_is_retried(run: Run, billed: bool, kind: str) -> None:
    failures = [_fault(billed=billed)]

    async def act(request: Request) -> str:
        if failures:
            raise failures.pop()
        return "fine"

    async with run.open(Server(act)) as gateway:
        assert (await gateway.answer(_ask())).text == "fine"
        assert gateway.ledger.lost == (WORST if billed else 0.0)
        assert gateway.retries == 1
    assert _kinds(run) == ["reserved", kind, "reserved", "answered"]
    assert len(run.waits) == 1


async def test_a_wait_holds_neither_slot_nor_money(tmp_path: Path) -> None:
    run = Run(tmp_path, search={"concurrency": 1}, budget={"usd": 1.2 * WORST})
    waiting, go = asyncio.Event(), asyncio.Event()

    async def act(request: Request) -> str:
        if request.messages[0].content == "busy" and not waiting.is_set():
            raise _fault()
        return ""

    async def sleep(seconds: float) -> None:
        waiting.set()
        await go.wait()

    run.sleep = sleep  # type: ignore[method-assign]
    async with run.open(Server(act)) as gateway:
        busy = asyncio.create_task(gateway.answer(_ask("busy")))
        await waiting.wait()
        assert gateway.ledger.reserved == 0.0
        await gateway.answer(_ask("other"))
        go.set()
        with pytest.raises(BudgetExceeded):
            await busy


async def test_a_lasting_failure_stops_the_batch_but_keeps_what_was_paid(tmp_path: Path) -> None:
    run = Run(tmp_path, search={"concurrency": 4})

    async def act(request: Request) -> str:
        if request.messages[0].content == "bad":
            await _step()
            raise _fault(transient=False)
        await _step(20)
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        with pytest.raises(ProviderError, match="no luck"):
            await gateway.sample([_ask("bad"), *(_ask(f"r{i}") for i in range(20))], 1)
        assert gateway.in_flight == 0
        assert len(server.asked) == 4
        assert len([e for e in run.events if isinstance(e, Answered)]) == 3
        assert isinstance(await gateway.answer(_ask("r15")), Completion)


async def test_at_the_cap_calls_in_flight_finish_first(tmp_path: Path) -> None:
    run = Run(tmp_path, budget={"usd": 5 * WORST})

    async def act(request: Request) -> str:
        await _step(20)
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        with pytest.raises(BudgetExceeded, match=r"`orchestry resume .* --budget "):
            await gateway.sample([_ask(f"r{i}") for i in range(50)], 1)
        assert gateway.ledger.reserved == 0.0
        assert gateway.ledger.spent <= 5 * WORST
        assert gateway.ledger.spent > 4 * WORST
    assert nano(server.billed_usd) <= nano(5 * WORST)
    assert len([e for e in run.events if isinstance(e, Answered)]) == len(server.asked)


async def test_after_the_door_is_shut_calls_in_flight_finish_and_none_begins(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, search={"concurrency": 3})
    go = asyncio.Event()

    async def act(request: Request) -> str:
        await go.wait()
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        batch = asyncio.create_task(gateway.sample([_ask(f"r{i}") for i in range(10)], 2))
        await _step()
        gateway.close_door("you asked to stop")
        await _step()
        assert not batch.done()
        go.set()
        with pytest.raises(Interrupted, match="you asked to stop"):
            await batch
        with pytest.raises(Interrupted):
            await gateway.answer(_ask("late"))
    assert len(server.asked) == 3
    assert Counter(_kinds(run)) == {"reserved": 3, "answered": 3}


async def test_the_door_wakes_who_waits_to_retry(run: Run) -> None:
    async def act(request: Request) -> str:
        raise _fault()

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(3600)

    run.sleep = sleep  # type: ignore[method-assign]
    async with run.open(Server(act)) as gateway:
        batch = asyncio.create_task(gateway.sample([_ask()], 3))
        await _step()
        gateway.close_door("stop")
        with pytest.raises(Interrupted):
            await asyncio.wait_for(batch, 1)


@pytest.mark.parametrize("bills", [True, False])
async def test_a_cancelled_call_counts_where_it_may_be_billed(run: Run, bills: bool) -> None:
    async def act(request: Request) -> str:
        await asyncio.sleep(3600)
        return ""

    server = Server(act)
    server.bills_unanswered = bills
    async with run.open(server) as gateway:
        batch = asyncio.create_task(gateway.sample([_ask("a"), _ask("b")], 2))
        await _step()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert gateway.ledger.spent == (4 * WORST if bills else 0.0)
        assert (gateway.ledger.reserved, gateway.in_flight) == (0.0, 0)
    assert Counter(_kinds(run)) == {"reserved": 4, ("lost" if bills else "released"): 4}


async def test_a_fault_in_a_providers_code_is_raised_as_it_is(run: Run) -> None:
    async def act(request: Request) -> str:
        raise ZeroDivisionError

    async with run.open(Server(act)) as gateway:
        with pytest.raises(ZeroDivisionError):
            await gateway.sample([_ask()], 2)
    assert Counter(_kinds(run)) == {"reserved": 1, "lost": 1}


async def test_a_bill_above_the_reservation_is_said_once(run: Run) -> None:
    server = Server()
    server.input_bound = lambda request: 0  # type: ignore[method-assign]
    run.config = run.config.model_copy(
        update={"prices": {"m": run.config.prices["m"].model_copy(update={"input": 9.0})}}
    )
    async with run.open(server) as gateway:
        await gateway.sample([_ask("a"), _ask("b")], 1)
    assert len(run.warnings) == 1
    assert "above the request's bounds" in run.warnings[0]


# --- order and concurrency ------------------------------------------------------------------------


async def test_the_concurrency_limit_holds_and_is_used(tmp_path: Path) -> None:
    run = Run(tmp_path, search={"concurrency": 7})

    async def act(request: Request) -> str:
        await _step()
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        await gateway.sample([_ask(f"r{i}") for i in range(10)], 5)
    assert server.most == 7


async def test_one_sample_leads_and_the_others_follow_its_start(run: Run) -> None:
    server = Server(leading=True)
    order: list[int] = []

    async def act(request: Request) -> str:
        order.append(server.now)
        await _step()
        return ""

    server.act = act
    async with run.open(server) as gateway:
        (row,) = await gateway.sample([_ask()], 4)
    assert [c.text.split()[1] for c in row] == list("0123")
    assert [r.sample_index for r in server.asked] == [0, 1, 2, 3]
    assert order[0] == 1
    assert server.most == 3
    assert server.shared == [True] * 4


async def test_a_leaders_failure_lets_the_batch_end(run: Run) -> None:
    async def act(request: Request) -> str:
        raise _fault(transient=False)

    server = Server(act, leading=True)
    async with run.open(server) as gateway:
        with pytest.raises(ProviderError, match="no luck"):
            await gateway.sample([_ask()], 4)
    assert len(server.asked) == 1


async def test_nobody_leads_where_only_one_is_left_to_ask(run: Run) -> None:
    server = Server(leading=True)
    async with run.open(server) as gateway:
        await gateway.sample([_ask()], 3)
        del server.shared[:]
        await gateway.sample([_ask()], 4)
        assert server.shared == [False]
        await gateway.sample([_ask()], 6)
        assert server.shared == [False, True, True]


# --- text -----------------------------------------------------------------------------------------


@given(st.text(alphabet=st.characters(), max_size=50))
def test_cleaned_text_fits_every_file(text: str) -> None:
    found = clean(Completion(text=text, model="m"), max_chars=40)
    assert found.model_dump_json()
    assert len(found.text) <= 40
    if text.isascii() and len(text) <= 40:
        assert found.text == text
    assert (found.stop == "cut") == (
        len(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")) > 40
    )


async def test_a_broken_and_an_overlong_answer_are_kept_clean(run: Run) -> None:
    async def act(request: Request) -> str:
        return "\ud800bad" if request.sample_index else "x" * (MAX_CHARS + 1)

    async with run.open(Server(act)) as gateway:
        ((long, bad),) = await gateway.sample([_ask()], 2)
    assert bad.text == "\ufffdbad"
    assert (len(long.text), long.stop) == (MAX_CHARS, "cut")
    assert [e.completion for e in run.events if isinstance(e, Answered)] == [long, bad]


# --- kills ----------------------------------------------------------------------------------------


class Chance:
    """Fates drawn from a seed: answers, refusals, and failures billed or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    async def act(self, request: Request) -> str:
        await _step(self.random.randrange(4))
        fate = self.random.random()
        if fate < 0.15:
            raise _fault(billed=True)
        if fate < 0.35:
            raise _fault(billed=False)
        return ""


async def _batch(run: Run, server: Server, *, kill_after: int | None = None) -> Mapping[str, Any]:
    """Plays one batch to its end or to the middle; what the process then knew."""
    async with run.open(server) as gateway:
        task = asyncio.create_task(gateway.sample([_ask(f"r{i}") for i in range(6)], 3))
        if kill_after is None:
            await asyncio.gather(task, return_exceptions=True)
        else:
            await _step(kill_after)
        image = run.path.read_bytes()
        known = {"spent": gateway.ledger.spent, "usage": gateway.usage(), "image": image}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return known


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 40), st.floats(1.0, 20.0), st.data())
def test_killed_and_resumed_the_bill_stays_below_the_cap(
    seed: int, kill_after: int, worsts: float, data: st.DataObject
) -> None:
    """The journal is what a kill leaves; a torn line is one that no one acted on yet."""
    cap = worsts * WORST
    with TemporaryDirectory() as folder:
        run = Run(
            Path(folder),
            budget={"usd": cap},
            cache={"enabled": False},
            search={"concurrency": data.draw(st.integers(1, 20))},
        )
        server = Server(Chance(seed).act)
        image = asyncio.run(_batch(run, server, kill_after=kill_after))["image"]
        killed_bill = server.billed_usd
        run.path.write_bytes(image)
        assert Ledger.fold(run.events, True).spent >= nano(killed_bill)
        answered = {e.key for e in run.events if isinstance(e, Answered)}
        before = len(server.asked)
        end = asyncio.run(_batch(run, server))
        assert nano(server.billed_usd) <= nano(cap)
        assert Ledger.fold(run.events, True).spent == nano(end["spent"])
        again = {f"{request_digest(r)}" for r in server.asked[before:]}
        assert not {key.rpartition("-")[2] for key in answered} & again


async def test_usage_of_a_resumed_run_equals_an_uninterrupted_ones(tmp_path: Path) -> None:
    rows = []
    for name, kill_after in (("whole", None), ("killed", 6)):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, search={"concurrency": 5})
        server = Server()
        if kill_after is not None:
            image = (await _batch(run, server, kill_after=kill_after))["image"]
            run.path.write_bytes(image)
            assert 0 < len([e for e in run.events if isinstance(e, Answered)]) < 18
        rows.append((await _batch(run, server))["usage"])
    assert rows[0] == rows[1]


async def test_a_resume_closes_what_the_kill_left_open(run: Run) -> None:
    log = Journal(run.path)
    log.append(Reserved(call=4, key="k", usd=0.25))
    log.close()
    async with run.open(Server()) as gateway:
        assert (gateway.ledger.spent, gateway.ledger.reserved) == (0.25, 0.0)
        await gateway.answer(_ask())
    assert [e.call for e in run.events if isinstance(e, Reserved | Lost | Released)] == [4, 4, 5]
