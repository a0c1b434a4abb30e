"""One door to a model: nothing is paid twice, nothing paid is lost, and the cap holds."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.errors import BudgetExceeded, Interrupted, Overbilled, ProviderError, ServerAway
from orchestry.core.types import Completion, Request
from orchestry.models.prices import price_table
from orchestry.models.request_key import request_digest
from orchestry.models.retry import AWAY_AFTER
from orchestry.store.journal import Answered, Reserved
from orchestry.store.summary import books, nano
from tests.models.scripted import INPUT, OUTPUT, USD, WORST, Run, Server, ask, fault, kinds, step


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


# --- what is asked, and what is not ---------------------------------------------------------------


async def test_episodes_begin_at_the_runs_pace(tmp_path: Path) -> None:
    run = Run(tmp_path, pace=10.0)
    async with run.open(Server()) as gateway:
        for later in (0.0, 4.0, 25.0):
            await gateway.keep_pace()
            run.now += later
        await gateway.keep_pace()
        assert run.waits == [0.0, 10.0, 6.0, 0.0]
        gateway.close_door("stop")
        with pytest.raises(Interrupted):
            await gateway.keep_pace()
    run = Run(tmp_path / "other")
    run.folder.mkdir()
    async with run.open(Server()) as gateway:
        await gateway.keep_pace()
    assert run.waits == []


async def test_samples_differ_in_index_and_seed_and_come_in_order(run: Run) -> None:
    server = Server()
    async with run.open(server) as gateway:
        rows = await gateway.sample([ask("a"), ask("b"), ask("a", seed=8)], 3)
    assert [[c.text.split()[:2] for c in row] for row in rows] == [
        [[name, str(j)] for j in range(3)] for name in "aba"
    ]
    assert len({request.seed for request in server.asked}) == 6
    assert len({request_digest(request) for request in server.asked}) == 9
    assert all(0 <= request.seed < 2**63 for request in server.asked)


async def test_an_answer_is_priced_journaled_and_counted(run: Run) -> None:
    async with run.open(Server()) as gateway:
        answer = await gateway.answer(ask())
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
        seen.append(kinds(run))
        return ""

    async with run.open(Server(look)) as gateway:
        await gateway.answer(ask())
    assert seen == [["reserved"]]


async def test_one_run_asks_once_even_without_a_cache(tmp_path: Path) -> None:
    run = Run(tmp_path, cache={"enabled": False})
    server = Server()
    async with run.open(server) as gateway:
        together = await asyncio.gather(*(gateway.answer(ask()) for _ in range(5)))
        later = await gateway.answer(ask())
    async with run.open(server) as gateway:
        resumed = await gateway.answer(ask())
    assert {a.model_dump_json() for a in [*together, later, resumed]} == {later.model_dump_json()}
    assert len(server.asked) == 1
    assert kinds(run) == ["reserved", "answered"]


async def test_another_run_finds_it_in_the_cache_for_nothing(tmp_path: Path) -> None:
    server = Server()
    config = {"cache": {"dir": tmp_path / "shared"}}
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, **config)
        async with run.open(server) as gateway:
            rows = await gateway.sample([ask()], 4)
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
    assert all(e.saved > 0 for e in run.events if e.kind == "answered")


async def test_a_private_provider_leaves_the_cache_alone(run: Run) -> None:
    server = Server()
    server.cacheable = False
    async with run.open(server) as gateway:
        await gateway.answer(ask())
    assert not (run.folder / "cache").exists()


async def test_a_twin_that_was_cut_off_does_not_fail_the_one_that_waits(run: Run) -> None:
    failures = [BudgetExceeded("no room")]

    async def act(request: Request) -> str:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        return "fine"

    async with run.open(Server(act)) as gateway:
        first, second = await asyncio.gather(
            gateway.answer(ask()), gateway.answer(ask()), return_exceptions=True
        )
    assert isinstance(first, BudgetExceeded)
    assert isinstance(second, Completion)
    assert second.text == "fine"


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("billed", "kind"), [(True, "lost"), (False, "released")])
async def test_a_passing_failure_is_retried(run: Run, billed: bool, kind: str) -> None:
    failures = [fault(billed=billed)]

    async def act(request: Request) -> str:
        if failures:
            raise failures.pop()
        return "fine"

    async with run.open(Server(act)) as gateway:
        assert (await gateway.answer(ask())).text == "fine"
        counted = WORST - INPUT / 1e6  # the answer tells the input of the attempt before it
        assert gateway.ledger.lost == pytest.approx(counted if billed else 0.0)
    counts = ["counted"] if billed else []
    assert kinds(run) == ["reserved", kind, "reserved", *counts, "answered"]
    assert len(run.waits) == 1


async def test_a_wait_holds_neither_slot_nor_money(tmp_path: Path) -> None:
    run = Run(tmp_path, search={"concurrency": 1}, budget={"usd": 1.2 * WORST})
    waiting, go = asyncio.Event(), asyncio.Event()

    async def act(request: Request) -> str:
        if request.messages[0].content == "busy" and not waiting.is_set():
            raise fault()
        return ""

    async def sleep(seconds: float) -> None:
        waiting.set()
        await go.wait()

    run.sleep = sleep  # type: ignore[method-assign]
    async with run.open(Server(act)) as gateway:
        busy = asyncio.create_task(gateway.answer(ask("busy")))
        await waiting.wait()
        assert gateway.ledger.reserved == 0.0
        await gateway.answer(ask("other"))
        go.set()
        with pytest.raises(BudgetExceeded):
            await busy


async def test_what_no_request_survives_stops_the_run_but_keeps_what_was_paid(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, search={"concurrency": 4})

    async def act(request: Request) -> str:
        if request.messages[0].content == "bad":
            await step()
            raise fault(transient=False)
        await step(20)
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        with pytest.raises(ProviderError, match="no luck"):
            await gateway.sample([ask("bad"), *(ask(f"r{i}") for i in range(20))], 1)
        assert gateway.in_flight == 0
        assert len(server.asked) == 4
        assert len([e for e in run.events if isinstance(e, Answered)]) == 3
        with pytest.raises(ProviderError, match="no luck"):
            await gateway.answer(ask("r15"))
    assert len(server.asked) == 4


async def refuses_bad(request: Request) -> str:
    """Answers all prompts but one."""
    if request.messages[0].content == "bad":
        raise fault(transient=False, refused=True)
    return ""


async def test_a_refused_request_is_one_missing_sample(run: Run) -> None:
    server = Server(refuses_bad)
    async with run.open(server) as gateway:
        (good,), (bad,) = await gateway.sample([ask("good"), ask("bad")], 1)
        ((again,),) = await gateway.sample([ask("bad")], 1)
        assert gateway.failed == 1
        await gateway.answer(ask("more"))
    assert (good.failed, bad.failed, bad.stop, again) == ("", "no luck", "failed", bad)
    async with run.open(server) as gateway:  # an answer followed, so the failure stands
        assert await gateway.sample([ask("bad")], 1) == [[bad]]
        assert gateway.ledger.spent == pytest.approx(2 * USD)
    assert [r.messages[0].content for r in server.asked].count("bad") == 1
    assert len(run.warnings) == 1


async def test_what_is_refused_to_a_program_is_its_own_affair(run: Run) -> None:
    """However many different calls, once the provider has answered any: none is missing, and none
    costs money. None is asked again once another was answered since; before, a setting may have
    been wrong."""

    async def act(request: Request) -> str:
        if request.messages[0].content == "good":
            return ""
        raise fault(transient=False, refused=True)

    server = Server(act)
    calls = [ask(f"r{i}").model_copy(update={"programmed": True}) for i in range(2 * AWAY_AFTER)]
    async with run.open(server) as gateway:
        await gateway.answer(ask("good"))
    spent = gateway.ledger.spent
    for times in (1, 2):
        async with run.open(server) as gateway:
            answers = [answer for (answer,) in await gateway.sample(calls, 1)]
            found = {(one.text, one.stop, one.failed) for one in answers}
            assert found == {("", "refused", "no luck")}
            assert (gateway.failed, gateway.refused) == (0, len(calls))
            assert not gateway.in_doubt
            assert (gateway.ledger.spent, gateway.ledger.reserved) == (spent, 0.0)
        assert len(server.asked) == 1 + times * len(calls)
        assert books(run.events).refused_calls == len(calls)
    async with run.open(server) as gateway:
        assert gateway.refused == len(calls)
        await gateway.answer(ask("good", seed=8))
    async with run.open(server) as gateway:
        await gateway.sample(calls, 1)
    assert len(server.asked) == 2 * len(calls) + 2
    sources = {event.source for event in run.events if isinstance(event, Answered)}
    assert sources == {"refused", "provider"}
    assert run.warnings == ["writer's answer is missing, and its program told: no luck"] * 2


@pytest.mark.parametrize("same", [False, True])
async def test_a_wrong_setting_stops_a_run_of_programs(run: Run, same: bool) -> None:
    """Also where their prompts are the same in each episode."""

    async def act(request: Request) -> str:
        raise fault(transient=False, refused=True)

    def call(episode: int) -> Request:
        told = {"programmed": True, "rank": episode}
        return ask("same" if same else f"r{episode}", seed=episode).model_copy(update=told)

    server = Server(act)
    async with run.open(server) as gateway:
        for episode in range(AWAY_AFTER - 1):
            assert (await gateway.answer(call(episode))).stop == "refused"
        assert isinstance(gateway.verdict(), ProviderError)
        with pytest.raises(ProviderError, match=r"8 different requests in a row .*no luck"):
            await gateway.answer(call(AWAY_AFTER))


@pytest.mark.parametrize("word", ["failed", "refused", "too_long"])
async def test_a_vendors_stop_word_is_no_state_of_ours(run: Run, word: str) -> None:
    said = Completion(text="a", model="m", stop=word)
    assert said.void == ""
    assert said.model_copy(update={"text": "", "failed": "why"}).void
    assert said.model_copy(update={"text": ""}).void == ("too_long" if word == "too_long" else "")

    class Worded(Server):
        async def complete(self, request: Request, **more: Any) -> Completion:
            answer = await super().complete(request, **more)
            return answer.model_copy(update={"stop": word})

    async with run.open(Worded()) as gateway:
        await gateway.answer(ask())
        assert (gateway.failed, gateway.refused) == (0, 0)


@pytest.mark.parametrize(("billed", "asked"), [(False, 3), (True, 2)])
async def test_a_call_whose_attempts_are_used_up_is_one_missing_sample(
    tmp_path: Path, billed: bool, asked: int
) -> None:
    retry = {"attempts": 3, "billed_attempts": 2, "base_s": 0.0}
    run = Run(tmp_path, retry=retry, search={"concurrency": 1})

    async def act(request: Request) -> str:
        if request.messages[0].content == "bad":
            raise fault(billed=billed)
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        rows = await gateway.sample([ask("bad"), *(ask(f"r{i}") for i in range(9))], 1)
    assert [row[0].failed for row in rows] == [f"after {asked} attempts: no luck", *[""] * 9]
    assert [r.messages[0].content for r in server.asked].count("bad") == asked


async def test_a_wrong_setting_stops_the_run_and_spoils_no_resume(run: Run) -> None:
    wrong = True

    async def act(request: Request) -> str:
        if wrong:
            raise fault(transient=False, refused=True)
        return ""

    server, prompts = Server(act), [ask(f"r{i}") for i in range(30)]
    run.config = run.config.model_copy(
        update={"search": run.config.search.model_copy(update={"concurrency": 2})}
    )
    async with run.open(server) as gateway:
        with pytest.raises(ProviderError, match=r"8 different requests in a row .*no luck"):
            await gateway.sample(prompts, 2)
    assert len(server.asked) <= 8 * 2 + 1
    wrong = False
    async with run.open(server) as gateway:
        rows = await gateway.sample(prompts, 2)
    assert not [answer for row in rows for answer in row if answer.failed]


async def test_one_prompt_that_is_always_refused_is_no_wrong_setting(run: Run) -> None:
    async with run.open(Server(refuses_bad)) as gateway:
        (row,) = await gateway.sample([ask("bad")], 20)
        assert gateway.in_doubt
        assert isinstance(gateway.verdict(), ProviderError), "nothing was ever answered"
        await gateway.answer(ask("good"))
        assert not gateway.in_doubt
        assert gateway.verdict() is None
    assert all(answer.failed for answer in row)


async def test_who_answered_an_earlier_process_is_no_wrong_setting(run: Run) -> None:
    async with run.open(Server(refuses_bad)) as gateway:
        await gateway.answer(ask("good"))
    (run.folder / "other").mkdir()
    other = Run(run.folder / "other")
    other.config = run.config  # and so its cache
    for process in (run, other):
        async with process.open(Server(refuses_bad)) as gateway:
            await gateway.answer(ask("good"))
            await gateway.answer(ask("bad"))
            assert gateway.in_doubt
            assert gateway.verdict() is None


async def test_who_was_refused_by_two_processes_is_believed(run: Run) -> None:
    async def act(request: Request) -> str:
        raise fault(transient=False, refused=True)

    for believed in (False, True):
        server = Server(act)
        async with run.open(server) as gateway:
            await gateway.sample([ask()], 2)
            assert (gateway.verdict() is None) == believed
        assert len(server.asked) == 2


# --- a server that is away ------------------------------------------------------------------------


class Away:
    """A server that fails until a time on the run's clock."""

    def __init__(self, run: Run, until: float, error: ProviderError) -> None:
        self.run, self.until, self.error = run, until, error

    async def act(self, request: Request) -> str:
        await step(2)
        if self.run.now < self.until:
            raise self.error
        return ""


@pytest.mark.parametrize("concurrency", [1, 3, 32])
@pytest.mark.parametrize("seconds", [1.0, 19.0, 55.0])
async def test_a_server_that_comes_back_costs_no_call(
    tmp_path: Path, seconds: float, concurrency: int
) -> None:
    run = Run(
        tmp_path,
        search={"concurrency": concurrency},
        retry={"base_s": 0.5, "patience_s": 60.0},
        budget={"usd": 1.0},
    )
    server = Server(Away(run, run.now + seconds, fault()).act)
    async with run.open(server) as gateway:
        rows = await gateway.sample([ask(f"r{i}") for i in range(10)], 4)
        assert gateway.ledger.lost == 0.0
    assert not [answer for row in rows for answer in row if answer.failed]
    away, back = [*run.warnings, None, None][:2]
    if seconds > 20:
        assert re.fullmatch(
            r"server away since \d\d:\d\d:\d\d \(no luck\): waiting, up to 60 s \(--patience\)",
            str(away),
        )
        assert re.fullmatch(r"server answers again after [\d.]+ s: going on", str(back))
        assert len(server.asked) < 40 + 2 * 32 + 12, "while it is away, one asks for all"


async def test_after_the_patience_the_run_stops_and_a_resume_goes_on(run: Run) -> None:
    away = Away(run, run.now + 1e9, fault())
    server = Server(away.act)
    async with run.open(server) as gateway:
        with pytest.raises(ServerAway, match=r"server away since .* 60 s") as stop:
            await gateway.sample([ask(f"r{i}") for i in range(50)], 2)
        with pytest.raises(ServerAway):
            await gateway.answer(ask("late"))
    assert stop.value.exit_code == 4
    assert Counter(kinds(run))["answered"] == 0
    away.until = run.now + 10
    async with run.open(server) as gateway:
        rows = await gateway.sample([ask(f"r{i}") for i in range(50)], 2)
        assert gateway.ledger.lost == gateway.ledger.reserved == 0.0
    assert not [answer for row in rows for answer in row if answer.failed]


async def test_probes_that_may_be_billed_are_few(tmp_path: Path) -> None:
    run = Run(tmp_path, search={"concurrency": 4}, retry={"patience_s": 3600.0}, budget={"usd": 1})
    server = Server(Away(run, run.now + 1e9, fault(billed=True)).act)
    async with run.open(server) as gateway:
        with pytest.raises(ServerAway):
            await gateway.sample([ask(f"r{i}") for i in range(50)], 1)
        assert gateway.ledger.lost == pytest.approx(len(server.asked) * WORST)
    assert len(server.asked) <= 8 + 3 + 13


async def test_two_servers_wait_each_for_itself(tmp_path: Path) -> None:
    run = Run(tmp_path, retry={"base_s": 0.5, "patience_s": 60.0}, budget={"usd": 1.0})
    away = Server(Away(run, run.now + 30, fault()).act)
    here = Server()
    away.base_url = "elsewhere"
    async with run.open(here) as gateway:
        other = gateway.beside(away, price_table(away, run.config))
        waiting = asyncio.create_task(other.sample([ask(f"r{i}") for i in range(9)], 1))
        rows = await gateway.sample([ask(f"r{i}") for i in range(9)], 1)
        assert not waiting.done()
        rows += await waiting
    assert not [answer for row in rows for answer in row if answer.failed]


async def test_the_door_wakes_who_waits_for_a_server_that_is_away(run: Run) -> None:
    slept = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.set()
        await asyncio.sleep(3600)

    server = Server(Away(run, run.now + 1e9, fault()).act)
    run.sleep = sleep  # type: ignore[method-assign]
    async with run.open(server) as gateway:
        batch = asyncio.create_task(gateway.sample([ask(f"r{i}") for i in range(40)], 1))
        await slept.wait()
        gateway.close_door("stop")
        with pytest.raises(Interrupted):
            await asyncio.wait_for(batch, 1)
    assert len(server.asked) <= 32 + 7  # seven that failed made room for others


async def test_at_the_cap_calls_in_flight_finish_first(tmp_path: Path) -> None:
    run = Run(tmp_path, budget={"usd": 5 * WORST})

    async def act(request: Request) -> str:
        await step(20)
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        with pytest.raises(BudgetExceeded, match=r"`orchestry resume .* --budget "):
            await gateway.sample([ask(f"r{i}") for i in range(50)], 1)
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
        batch = asyncio.create_task(gateway.sample([ask(f"r{i}") for i in range(10)], 2))
        await step()
        gateway.close_door("you asked to stop")
        await step()
        assert not batch.done()
        go.set()
        with pytest.raises(Interrupted, match="you asked to stop"):
            await batch
        with pytest.raises(Interrupted):
            await gateway.answer(ask("late"))
    assert len(server.asked) == 3
    assert Counter(kinds(run)) == {"reserved": 3, "answered": 3}


async def test_the_door_wakes_who_waits_to_retry(run: Run) -> None:
    async def act(request: Request) -> str:
        raise fault()

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(3600)

    run.sleep = sleep  # type: ignore[method-assign]
    async with run.open(Server(act)) as gateway:
        batch = asyncio.create_task(gateway.sample([ask()], 3))
        await step()
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
        batch = asyncio.create_task(gateway.sample([ask("a"), ask("b")], 2))
        await step()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert gateway.ledger.spent == (4 * WORST if bills else 0.0)
        assert (gateway.ledger.reserved, gateway.in_flight) == (0.0, 0)
    assert Counter(kinds(run)) == {"reserved": 4, ("lost" if bills else "released"): 4}


async def test_a_fault_in_a_providers_code_is_raised_as_it_is(run: Run) -> None:
    async def act(request: Request) -> str:
        raise ZeroDivisionError

    async with run.open(Server(act)) as gateway:
        with pytest.raises(ZeroDivisionError):
            await gateway.sample([ask()], 2)
    assert Counter(kinds(run)) == {"reserved": 1, "lost": 1}


async def test_after_a_bill_above_the_reservation_nothing_more_is_asked(run: Run) -> None:
    server = Server()
    server.input_bound = lambda request: 0  # type: ignore[method-assign]
    run.config = run.config.model_copy(
        update={"prices": {"m": run.config.prices["m"].model_copy(update={"input": 9.0})}}
    )
    async with run.open(server) as gateway:
        assert isinstance(await gateway.answer(ask("a")), Completion)
        with pytest.raises(Overbilled, match="above the request's bounds") as stop:
            await gateway.sample([ask("b"), ask("a")], 1)
        assert "orchestry resume" in str(stop.value)
        assert stop.value.exit_code == 3
    assert len(server.asked) == 1
    assert run.warnings == [str(stop.value)]
    async with run.open(Server()) as gateway:
        assert isinstance(await gateway.answer(ask("b")), Completion)


# --- order and concurrency ------------------------------------------------------------------------


async def test_the_concurrency_limit_holds_and_is_used(tmp_path: Path) -> None:
    run = Run(tmp_path, search={"concurrency": 7})

    async def act(request: Request) -> str:
        await step()
        return ""

    server = Server(act)
    async with run.open(server) as gateway:
        await gateway.sample([ask(f"r{i}") for i in range(10)], 5)
    assert server.most == 7


async def test_one_sample_leads_and_the_others_follow_its_start(run: Run) -> None:
    server = Server(leading=True)
    order: list[int] = []

    async def act(request: Request) -> str:
        order.append(server.now)
        await step()
        return ""

    server.act = act
    async with run.open(server) as gateway:
        (row,) = await gateway.sample([ask()], 4)
    assert [c.text.split()[1] for c in row] == list("0123")
    assert [r.sample_index for r in server.asked] == [0, 1, 2, 3]
    assert order[0] == 1
    assert server.most == 3
    assert server.shared == [True] * 4


async def test_a_leaders_failure_lets_the_batch_end(run: Run) -> None:
    async def act(request: Request) -> str:
        raise fault(transient=False)

    server = Server(act, leading=True)
    async with run.open(server) as gateway:
        with pytest.raises(ProviderError, match="no luck"):
            await gateway.sample([ask()], 4)
    assert len(server.asked) == 1


async def test_nobody_leads_where_only_one_is_left_toask(run: Run) -> None:
    server = Server(leading=True)
    async with run.open(server) as gateway:
        await gateway.sample([ask()], 3)
        del server.shared[:]
        await gateway.sample([ask()], 4)
        assert server.shared == [False]
        await gateway.sample([ask()], 6)
        assert server.shared == [False, True, True]


@pytest.mark.parametrize("programmed", [False, True])
async def test_a_call_that_can_never_fit_is_missing_and_others_go_on(
    tmp_path: Path, programmed: bool
) -> None:
    run = Run(tmp_path, budget={"usd": 20 * WORST})
    big = ask("x" * 10_000).model_copy(update={"programmed": programmed})
    server = Server()
    server.input_bound = lambda request: 10_000 if request == big else 2 * INPUT  # type: ignore[method-assign]
    async with run.open(server) as gateway, gateway.ledger.episode(0):
        await gateway.answer(ask("first"))
        gone = await gateway.answer(big)
        assert gone.void == ("refused" if programmed else "failed")
        assert "more than is left of the budget" in gone.failed
        assert (await gateway.answer(ask("another"))).text
    assert len(server.asked) == 2, "it is never sent"
    assert [warning for warning in run.warnings if "budget" in warning]


async def test_a_server_that_overbills_names_the_calls_in_flight(tmp_path: Path) -> None:
    run = Run(tmp_path, search={"concurrency": 3})
    go = asyncio.Event()

    async def act(request: Request) -> str:
        if request.messages[0].content != "liar":
            await go.wait()
        return "fine"

    server = Server(act)
    async with run.open(server) as gateway:
        others = [asyncio.create_task(gateway.answer(ask(name))) for name in "ab"]
        await step()
        server.output_tokens = 10**6
        await gateway.answer(ask("liar"))
        go.set()
        await asyncio.gather(*others, return_exceptions=True)
    assert any("2 calls in flight will be billed" in line for line in run.warnings), run.warnings
