"""Runs over real HTTP against a server that fails in every way it can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orchestry
from benchmarks.server.bill import Options
from benchmarks.server.loopback import FAULTS, ROOT, Loopback, serve
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import OrchestryError, ProviderError
from orchestry.engine.run import prepare, resume, run_plan
from orchestry.report.runs import Salvaged
from orchestry.report.tables import fault_counts
from orchestry.store.journal import Answered, Event, Lost, Released, Reserved, read
from orchestry.store.run import Run
from tests.engine.test_run import Noted

VENDORS = ("anthropic", "openai")
TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
MODEL = "claude-sonnet-5"
EPISODES = 4


@contextmanager
def serving(**options: Any) -> Iterator[tuple[str, Loopback]]:
    """The benchmarks' server, in a thread of its own."""
    ready, ended = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def main() -> None:
        found.append(asyncio.get_running_loop())
        async with serve(Options(input_usd=2.0, output_usd=10.0, **options)) as served:
            found.extend(served)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(10)
    loop, url, loopback = found
    try:
        yield url, loopback
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in VENDORS:
        monkeypatch.setenv(f"{vendor.upper()}_API_KEY", "none-needed-here")


def config(vendor: str, url: str, *sets: str) -> RunConfig:
    address = url if vendor == "anthropic" else f"{url}/v1"
    return resolve(
        sets=[
            *("task=words", f"task_path=[{TASKS}]", f"episodes={EPISODES}", "cache.enabled=false"),
            *(f"provider.name={vendor}", f"provider.model={MODEL}"),
            *(f"provider.base_url={address}", "provider.timeout_s=0.2"),
            *(f"prices.{MODEL}.input=2", f"prices.{MODEL}.output=10"),
            *("search.k_samples=2", "search.beam_width=1", "sampling.max_tokens=32"),
            *("judge.enabled=false", "behaviors.enabled=false"),
            *("retry.base_s=0.005", "retry.max_s=0.02", "retry.patience_s=20"),
            *sets,
        ]
    )


def begin(folder: Path, vendor: str, url: str, *sets: str) -> tuple[Run, Noted]:
    watch = Noted()
    return run_plan(prepare(config(vendor, url, *sets)), folder, watch), watch


# --- one fault ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_prompt_that_is_always_refused_fails_its_episode_alone(
    tmp_path: Path, vendor: str
) -> None:
    with serving(poison="words on 3") as (url, _):
        run, watch = begin(tmp_path / "run", vendor, url, "episodes=5")
    summary = run.summary
    assert (summary.stopped, summary.episodes, summary.failed_episodes) == ("done", 5, 1)
    assert summary.failed_calls == 2
    assert [episode.problem for episode in run.failed] == ["train-3"]
    assert "answered 400" in run.failed[0].failed
    assert len(run.episodes) == len(run.rewards) == 4
    assert summary.mean_reward == pytest.approx(sum(run.rewards) / 4)
    assert len((run.folder / "rewards.csv").read_text().splitlines()) == 1 + 4
    assert sum("answered 400" in note for note in watch.notes) == 1
    said = fault_counts(run)
    assert said["calls that failed for good, their samples left out"] == "2"
    assert said["episodes that failed, and are in no figure"] == "1"
    left = Salvaged(run.folder)
    (run.folder / "summary.json").unlink()
    kept = summary.model_dump(include={"episodes", "failed_episodes", "failed_calls"})
    assert left.summary.model_dump(include=set(kept)) == kept
    assert left.summary.mean_reward == summary.mean_reward
    asked = summary.calls
    with serving() as (url, loopback):  # healed: but what is finished is finished
        again = resume(run.folder)
        assert loopback.bill.requests == 0
    assert (again.summary.calls, again.summary.failed_episodes) == (asked, 1)


def test_a_failed_run_is_replayed_as_it_was(tmp_path: Path) -> None:
    with serving(poison="words on 3", script="-,bad_request") as (url, _):
        run, _ = begin(tmp_path / "run", "openai", url, "episodes=5", "search.concurrency=1")
    sets = (f"provider.recording={run.folder}", "provider.name=recorded", "provider.base_url=null")
    found, _ = begin(tmp_path / "again", "openai", "", "episodes=5", *sets)
    assert found.rewards == run.rewards
    assert found.summary.failed_episodes == run.summary.failed_episodes == 1
    assert found.summary.failed_calls == run.summary.failed_calls == 3


@pytest.mark.parametrize("many", [False, True])
def test_a_wrong_address_spoils_no_resume(tmp_path: Path, many: bool) -> None:
    """With fewer prompts than make it sure at once, and with more."""
    relay = ("task=relay", f"task_path=[{ROOT / 'benchmarks' / 'server' / 'tasks'}]", "episodes=20")
    sets = (*relay, "search.concurrency=1") if many else ()
    with serving(not_found=1.0) as (url, loopback):
        with pytest.raises(ProviderError, match="answered 404"):
            begin(tmp_path / "run", "anthropic", url, *sets)
        assert loopback.bill.requests <= 2 * 9
        run = orchestry.load_run(tmp_path / "run")
        assert run.summary.stopped == "failed"
        assert run.summary.episodes == 0
        loopback.heal()
        done = resume(run.folder)
    assert done.summary.stopped == "done"
    assert (done.summary.failed_episodes, done.summary.failed_calls) == (0, 0)


def test_learning_goes_on_without_what_failed(tmp_path: Path) -> None:
    shares = {"bad_request": 0.1, "malformed_billed": 0.1, "overloaded": 0.1}
    sets = ("episodes=6", "behaviors.enabled=true", "behaviors.every=3", "judge.enabled=true")
    with serving(seed=3, **shares) as (url, loopback):
        run, _ = begin(tmp_path / "run", "openai", url, *sets, "behaviors.share=1")
        assert loopback.bill.usd <= run.summary.cost_usd
    assert (run.summary.stopped, run.summary.updates) == ("done", 2)
    assert run.summary.failed_calls > 0


# --- any faults in any order ----------------------------------------------------------------------


def ends(events: Sequence[Event]) -> list[int]:
    """Calls whose reservation has no end."""
    opened = {event.call for event in events if isinstance(event, Reserved)}
    ended = {e.call for e in events if isinstance(e, Answered | Released | Lost)}
    return sorted(opened - ended)


def endures(script: Sequence[str], vendor: str, concurrency: int, cap: float) -> None:
    """Plays a run through the script, and resumes it until it is done."""
    sets = (f"search.concurrency={concurrency}", f"budget.usd={cap}", "retry.patience_s=0.5")
    with TemporaryDirectory() as name, serving(script=",".join(script)) as (url, loopback):
        folder, codes = Path(name) / "run", list[int]()
        while not codes or codes[-1]:
            try:
                if codes:
                    run = resume(folder, {"budget": {"usd": 5.0}})
                else:
                    run, _ = begin(folder, vendor, url, *sets)
                codes.append({"done": 0, "budget": 3, "away": 4}[run.summary.stopped])
            except OrchestryError as error:
                codes.append(error.exit_code)
            spent = orchestry.load_run(folder).summary.cost_usd
            assert loopback.bill.usd <= spent + 1e-9
            assert spent <= (cap if len(codes) == 1 else 5.0) + 1e-9
            events = list(read(folder / "journal.jsonl"))
            assert ends(events) == []
            answered = any(e.source == "provider" for e in events if isinstance(e, Answered))
            assert codes[-1] in (0, 3, 4) or not answered, "1 is for runs that nobody answers"
            assert len(codes) <= 2 + len(script) // 4, "each process takes some of the faults"
        assert run.summary.episodes == EPISODES


FATES = st.lists(st.sampled_from(["-", "-", *FAULTS]), max_size=40)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.slow
def test_a_server_that_begins_with_a_fault_in_a_row_is_got_over(fault: str) -> None:
    endures([fault] * (3 if fault == "hang_billed" else 12), VENDORS[len(fault) % 2], 4, 1.0)


@settings(max_examples=4, deadline=None)
@given(FATES, st.sampled_from(VENDORS), st.integers(1, 8), st.sampled_from([0.001, 0.004, 1.0]))
def test_whatever_a_server_does_the_cap_holds_and_the_run_ends(
    script: list[str], vendor: str, concurrency: int, cap: float
) -> None:
    endures(script, vendor, concurrency, cap)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["-", *FAULTS]), max_size=120),
    st.sampled_from(VENDORS),
    st.integers(1, 32),
    st.floats(0.0005, 0.05),
)
def test_whatever_a_server_does_at_length(
    script: list[str], vendor: str, concurrency: int, cap: float
) -> None:
    endures(script, vendor, concurrency, cap)
