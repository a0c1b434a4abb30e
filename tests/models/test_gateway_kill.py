"""What a run keeps: clean text, and after a kill every answer and every cent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core.types import MAX_CHARS, Completion, Request
from orchestry.models.gateway import clean
from orchestry.models.request_key import request_digest
from orchestry.store.journal import HEAD, Answered, Journal, Lost, Released, Reserved
from orchestry.store.summary import nano
from tests.journals import balance_of
from tests.models.scripted import WORST, Run, Server, ask, fault, step


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


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
        ((long, bad),) = await gateway.sample([ask()], 2)
    assert bad.text == "\ufffdbad"
    assert (len(long.text), long.stop) == (MAX_CHARS, "cut")
    assert [e.completion for e in run.events if isinstance(e, Answered)] == [long, bad]


# --- kills ----------------------------------------------------------------------------------------


class Chance:
    """Fates drawn from a seed: answers, refusals, and failures billed or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    async def act(self, request: Request) -> str:
        await step(self.random.randrange(4))
        fate = self.random.random()
        if fate < 0.15:
            raise fault(billed=True)
        if fate < 0.35:
            raise fault(billed=False)
        return ""


async def _batch(run: Run, server: Server, *, kill_after: int | None = None) -> Mapping[str, Any]:
    """Plays one batch to its end or to the middle; what the process then knew."""
    async with run.open(server) as gateway:
        task = asyncio.create_task(gateway.sample([ask(f"r{i}") for i in range(6)], 3))
        if kill_after is None:
            await asyncio.gather(task, return_exceptions=True)
        else:
            await step(kill_after)
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
        write_image(run, image)
        assert balance_of(run.events, True).spent >= nano(killed_bill)
        answered = {e.key for e in run.events if isinstance(e, Answered) and e.source != "failed"}
        before = len(server.asked)
        end = asyncio.run(_batch(run, server))
        assert nano(server.billed_usd) <= nano(cap)
        assert balance_of(run.events, True).spent == nano(end["spent"])
        again = {f"{request_digest(r)}" for r in server.asked[before:]}
        assert not {key.rpartition("-")[2] for key in answered} & again


def write_image(run: Run, image: bytes) -> None:
    """The journal as it was when the process was killed; its head, as the kill left it, is older
    than the one that the process went on to write."""
    run.path.write_bytes(image)
    run.path.with_name(HEAD).unlink()


async def test_usage_of_a_resumed_run_equals_an_uninterrupted_ones(tmp_path: Path) -> None:
    rows = []
    for name, kill_after in (("whole", None), ("killed", 6)):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, search={"concurrency": 5})
        server = Server()
        if kill_after is not None:
            image = (await _batch(run, server, kill_after=kill_after))["image"]
            write_image(run, image)
            assert 0 < len([e for e in run.events if isinstance(e, Answered)]) < 18
        rows.append((await _batch(run, server))["usage"])
    assert rows[0] == rows[1]


async def test_a_resume_closes_what_the_kill_left_open(run: Run) -> None:
    log = Journal(run.path)
    log.append(Reserved(call=4, key="k", usd=0.25))
    log.close()
    async with run.open(Server()) as gateway:
        assert (gateway.ledger.spent, gateway.ledger.reserved) == (0.25, 0.0)
        await gateway.answer(ask())
    assert [e.call for e in run.events if isinstance(e, Reserved | Lost | Released)] == [4, 4, 5]
