"""The judge of code collaboration, which is off unless asked for: on a real HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.engine.estimate import Estimate, estimate
from orchestry.engine.run import prepare, resume
from orchestry.engine.session import Silent
from orchestry.store.journal import Answered, Reserved
from orchestry.store.run import Run
from tests.models.loopback import Server, reply, serving
from tests.tasks.test_code_collaboration_runs import MAINS

PROBLEMS = Path(__file__).parents[2] / "tasks" / "code_collaboration" / "problems.jsonl"
BASE = (
    *("task=code_collaboration", "episodes=4", "search.k_samples=2", "cache.enabled=false"),
    *("provider.name=openai", "provider.model=m", "prices.m.input=1", "prices.m.output=5"),
    *("behaviors.every=2", "behaviors.share=2", "options.acting=sequential"),
)
HELPERS = tuple(f"def aux(n):\n    return {code}" for code in ("n ** 3", "n", "n * n * n", "n * n"))
"""Which the reward can't tell apart before main has answered."""
ASKED = ("judge.enabled=true",)
WHOLE = {"why", "text"}
"""The schema's keys where a whole prompt is asked for."""


def content(body: dict[str, Any]) -> str:
    """What a model says that knows cubes, rates every sibling alike, and has one rule to give."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    if "behaviors" in schema.get("properties", {}):
        return json.dumps({"behaviors": [{"why": "It failed.", "text": "Mind the empty list."}]})
    if schema.get("properties", {}).keys() == WHOLE:
        return json.dumps({"why": "It failed.", "text": "You write functions on numbers."})
    if schema:
        rating = {"feedback": "Good.", "quality": 7, "collaboration": 5, "efficiency": 5}
        return json.dumps(dict.fromkeys(schema["properties"], rating))
    helps = "Write only the helper function" in body["messages"][0]["content"]
    texts = HELPERS if helps else MAINS
    digest = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=2).digest()
    return texts[digest[0] % len(texts)].format(name="sum_of_cubes")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    def answer(number: int) -> bytes:
        said = {"message": {"content": content(held.bodies[number])}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return reply({"choices": [said], "usage": usage})

    async with serving(answer) as held:
        yield held


@pytest.fixture
def bank(tmp_path: Path) -> str:
    """One problem for train, and the same for dev, so that behaviours can be tested."""
    rows = map(json.loads, PROBLEMS.read_text().splitlines())
    cubes = next(row for row in rows if row["id"] == "sum_of_cubes")
    path = tmp_path / "bank.jsonl"
    lines = (json.dumps(cubes | {"id": split, "split": split}) for split in ("train", "dev"))
    path.write_text("\n".join(lines))
    return f"options.path={path}"


def config(server: Server, bank: str, *sets: str) -> RunConfig:
    return resolve([], [*BASE, f"provider.base_url={server.url}", bank, *sets])


class Listening(Silent):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


async def trained(chosen: RunConfig, folder: Path) -> tuple[Run, list[str]]:
    """The run, in a thread beside its server, and what the user was told."""
    watch = Listening()
    return await asyncio.to_thread(orchestry.train, chosen, folder, watch), watch.notes


async def foretold(chosen: RunConfig) -> tuple[Estimate, list[str]]:
    notes = list[str]()
    return await asyncio.to_thread(estimate, chosen, {}, notes.append), notes


def answered(run: Run) -> Counter[str]:
    """Calls that were answered, by purpose."""
    return Counter(event.purpose for event in run.events if isinstance(event, Answered))


def ratings_asked(server: Server) -> int:
    """Requests for a verdict that came in at the server."""
    schemas = [
        body["response_format"]["json_schema"]["schema"]["properties"]
        for body in server.bodies
        if "response_format" in body
    ]
    return sum("behaviors" not in found and found.keys() != WHOLE for found in schemas)


async def test_by_default_it_learns_without_a_judge(
    tmp_path: Path, server: Server, bank: str
) -> None:
    run, notes = await trained(config(server, bank), tmp_path / "run")
    assert run.summary.stopped == "done"
    assert run.config["judge"]["enabled"] is False
    assert run.config["behaviors"]["enabled"] is True
    purposes = answered(run)
    assert purposes["judge"] == ratings_asked(server) == 0
    assert purposes["distil"] > 0
    assert purposes["trial"] > 0
    (note,) = [note for note in notes if note.startswith("judge off")]
    assert "code_collaboration" in note
    assert "judge.enabled=true" in note


@pytest.mark.parametrize("acting", ["sequential", "joint"])
async def test_the_switch_asks_one_through_the_ledger(
    tmp_path: Path, server: Server, bank: str, acting: str
) -> None:
    chosen = config(server, bank, *ASKED, f"options.acting={acting}")
    run, notes = await trained(chosen, tmp_path / "run")
    assert run.summary.stopped == "done"
    assert not any(note.startswith("judge off") for note in notes)
    calls = [e for e in run.events if isinstance(e, Answered) and e.purpose == "judge"]
    assert len(calls) == ratings_asked(server) > 0
    reserved = {event.call for event in run.events if isinstance(event, Reserved)}
    assert {event.call for event in calls} <= reserved
    paid = sum(event.completion.usd for event in calls)
    assert run.summary.cost_by_use["judge"] == pytest.approx(paid)
    assert paid > 0.0


@pytest.mark.parametrize("sets", [(), ASKED])
async def test_the_dry_run_counts_it_where_it_is_on(
    server: Server, bank: str, sets: tuple[str, ...]
) -> None:
    dry, notes = await foretold(config(server, bank, *sets))
    purposes = {row.purpose for row in dry.usage}
    assert purposes == {"act", "distil", "trial"} | ({"judge"} if sets else set())
    assert any("task code_collaboration asks for no judge" in note for note in notes) != bool(sets)
    assert not server.bodies


@pytest.mark.parametrize("sets", [(), ASKED])
@pytest.mark.slow
async def test_a_resume_keeps_to_what_the_run_began_with(
    tmp_path: Path, server: Server, bank: str, sets: tuple[str, ...]
) -> None:
    run, _ = await trained(config(server, bank, "episodes=2", *sets), tmp_path / "run")
    before, watch = answered(run), Listening()
    again = await asyncio.to_thread(resume, run.folder, {"episodes": 4}, watch)
    assert again.summary.stopped == "done"
    assert len(again.episodes) == 4
    new = answered(again) - before
    assert new["act"] > 0
    assert (new["judge"] > 0) == bool(sets)
    assert again.config["judge"] == run.config["judge"]
    assert again.config["behaviors"] == run.config["behaviors"]
    assert not any(note.startswith("judge off") for note in watch.notes)


async def test_said_outright_no_judge_is_no_learning_either(server: Server, bank: str) -> None:
    plan = prepare(config(server, bank, "judge.enabled=false"), environ={})
    assert plan.backend.every is None
    assert not plan.backend.judges
