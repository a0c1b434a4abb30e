"""Calls of programs: which are the same, in whatever order they come, and what is refused to one
program alone."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.cli.show import _facts
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ProviderError
from orchestry.engine.run import resume
from orchestry.report.tables import fault_counts
from orchestry.store.journal import Answered, Lost
from orchestry.store.run import Run
from tests.models.conftest import ANTHROPIC_ANSWER, KEY, OPENAI_ANSWER
from tests.models.loopback import Server, reply, serving

for package in ("aiohttp", "anthropic", "openai"):  # imported before a program's time runs
    pytest.importorskip(package)
TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
BASE = ["task=poster", f"task_path=[{TASKS}]", "cache.enabled=false"]
FAKE = [*BASE, "provider.name=fake"]
USER = [{"role": "user", "content": "a"}]


def keys(run: Run) -> list[str]:
    return sorted(event.key for event in run.events if isinstance(event, Answered))


def told(run: Run) -> list[list[tuple[int, str]]]:
    """By rollout, each call's status and text."""
    nodes = [node for one in run.episodes for node in one.nodes]
    return [json.loads(node.score.feedback) for node in nodes if node.score.feedback]


def posts(*bodies: Any) -> str:
    return f"options.bodies={json.dumps(bodies)}"


# --- which calls are the same --------------------------------------------------------------------


def test_parallel_calls_are_the_same_in_whatever_order_they_come(tmp_path: Path) -> None:
    sets = [*FAKE, "options.way=pipelines", "episodes=2", "search.k_samples=2"]
    one, other = (orchestry.train(resolve([], sets, {}), tmp_path / name) for name in "ab")
    assert len(set(keys(one))) == 2 * 2 * 3 * 2  # episodes, rollouts, pipelines, agents
    assert keys(one) == keys(other)
    assert [e.reward for e in one.episodes] == [e.reward for e in other.episodes]


def test_what_a_program_asks_again_is_drawn_again(tmp_path: Path) -> None:
    chat = ["/chat/completions", {"messages": USER}]
    sets = [*FAKE, posts(chat, chat, chat), "episodes=1", "search.k_samples=2"]
    run = orchestry.train(resolve([], sets, {}), tmp_path / "run")
    texts = [text for rollout in told(run) for _, text in rollout]
    assert len(set(texts)) == len(texts) == 2 * 5


@pytest.mark.slow
def test_a_resume_pays_no_parallel_call_again(tmp_path: Path) -> None:
    """The process dies by SIGKILL, while pipelines of eight rollouts are on their way."""
    sets = [*FAKE, "options.way=pipelines", "episodes=1", "search.k_samples=8"]
    sets += ["provider.fake.latency_s=0.5"]  # each role's three calls follow each other
    folder, whole = tmp_path / "run", 8 * 3 * 2
    command = [sys.executable, "-m", "orchestry", "run", "--run-dir", str(folder), "--trust"]
    with subprocess.Popen([*command, *(w for one in sets for w in ("--set", one))]) as process:
        while process.poll() is None and _answers(folder) < whole // 2:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert whole // 2 <= _answers(folder) < whole
    resume(folder)
    assert _answers(folder) == whole


def _answers(folder: Path) -> int:
    """In the journal so far."""
    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum('"answered"' in line for line in lines)


# --- what is refused to one program ---------------------------------------------------------------


def shaped(schema: Any) -> list[Any]:
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return ["/chat/completions", {"messages": USER, "response_format": asked}]


def tooled(parameters: Any) -> list[Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return ["/chat/completions", {"messages": USER, "tools": [tool]}]


ITSELF = {"type": "object", "properties": {"n": {"$ref": "#/$defs/A"}}}
VALID = (
    shaped({"type": "object", "properties": {"a": True}}),
    shaped({}),
    shaped({"type": "object", "properties": {"t": {"type": ["string", "null"]}}}),
    tooled({"type": "object", "properties": {"t": True}}),
    tooled({"type": "object", "required": ["zz"]}),
)
SENT = (
    shaped({"type": "object", "properties": 5}),
    shaped({"type": "array", "items": {"type": "array", "items": False}, "minItems": "x"}),
    shaped({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}),
    shaped({"$ref": "#/$defs/A", "$defs": {"A": ITSELF}}),
    shaped({"anyOf": 5}),
)
"""What providers other than the fake leave to the vendor."""


def test_schemas_that_the_fake_provider_can_not_follow_are_refused(tmp_path: Path) -> None:
    sets = [*FAKE, posts(*VALID, *SENT), "episodes=1", "search.k_samples=3"]
    run = orchestry.train(resolve([], sets, {}), tmp_path / "run")
    for rollout in told(run):
        statuses = [status for status, _ in rollout]
        assert statuses == [200] * 6 + [400] * 5 + [200]
        assert all("JSON schema" in text for _, text in rollout[6:11])
    assert run.summary.failed_calls == 0


def nested(deep: int) -> Any:
    start: Any = {}
    return reduce(lambda part, _: {"items": part}, range(deep - 1), start)


def test_schemas_that_a_run_could_not_read_back_are_refused(tmp_path: Path) -> None:
    """What is not refused is read back."""
    bodies = [form(nested(deep)) for form in (tooled, shaped) for deep in (100, 101, 200)]
    sets = [*FAKE, posts(*bodies), "episodes=1", "search.k_samples=1"]
    orchestry.train(resolve([], sets, {}), tmp_path / "run")
    (rollout,) = told(orchestry.load_run(tmp_path / "run"))
    assert [status for status, _ in rollout[1:4]] == [200, 400, 400]
    refused = [rollout[place][1] for place in (2, 3, 5, 6)]
    assert all("a schema is nested deeper than 100: flatten it" in text for text in refused)


def test_a_wrong_model_stops_a_run_though_its_programs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say the same in all episodes."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    async def play() -> int:
        async with serving(reply({"error": {"message": "no such model"}}, status=404)) as server:
            sets = vendor("openai", server, "episodes=60", "search.k_samples=1")
            with pytest.raises(ProviderError, match="requests in a row were refused"):
                await asyncio.to_thread(orchestry.train, sets, tmp_path / "run")
            return len(server.bodies)

    assert asyncio.run(play()) < 60


def vendor(name: str, server: Server, *sets: str) -> RunConfig:
    where = [f"provider.name={name}", "provider.model=m", f"provider.base_url={server.url}"]
    more = ["prices.m.input=1", "prices.m.output=5", "episodes=1"]
    off = ["behaviors.enabled=false", "judge.enabled=false"]
    return resolve([], [*BASE, *where, *more, *off, *sets], {})


@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_schemas_of_any_form_reach_the_vendor(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{name.upper()}_API_KEY", KEY)
    answer = OPENAI_ANSWER if name == "openai" else ANTHROPIC_ANSWER
    async with serving(reply(answer)) as server:
        sets = vendor(name, server, posts(*VALID, *SENT), "search.k_samples=1")
        run = await asyncio.to_thread(orchestry.train, sets, tmp_path / "run")
    assert [status for status, _ in told(run)[0]] == [200] * 12
    assert "true" in json.dumps(server.bodies[1])


async def test_a_vendors_refusal_reaches_the_program_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them in a row than end a run of other tasks; each costs nothing."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    held, why = list[Server](), f"messages.1: no such call, says {KEY}"

    def reaction(number: int) -> bytes:
        bad = "bad" in json.dumps(held[0].bodies[number]["messages"])
        return reply({"error": {"message": why}}, status=400) if bad else reply(OPENAI_ANSWER)

    bad = [
        ["/chat/completions", {"messages": [{"role": "user", "content": f"bad {n}"}]}]
        for n in range(10)
    ]
    async with serving(reaction) as server:
        held.append(server)
        sets = vendor("openai", server, posts(*bad), "search.k_samples=2")
        run = await asyncio.to_thread(orchestry.train, sets, tmp_path / "run")
    for rollout in told(run):
        assert [status for status, _ in rollout] == [200, *[400] * 10, 200]
        assert all("answered 400: messages.1: no such call" in text for _, text in rollout[1:11])
    assert len(told(run)) == 2
    summary = run.summary
    assert (summary.calls, summary.failed_calls, summary.refused_calls) == (4, 0, 20)
    assert "(20 calls refused to programs)" in dict(_facts(summary))["calls"]
    assert fault_counts(run)["calls refused to programs, which were told why"] == "20"
    answered = [event for event in run.events if isinstance(event, Answered)]
    assert [event.source for event in answered].count("refused") == 20
    paid = sum(event.completion.usd for event in answered)
    assert run.summary.cost_usd == pytest.approx(paid)
    assert not [event for event in run.events if isinstance(event, Lost)]
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert KEY not in str(told(run))
    assert not any(KEY.encode() in text for text in files)
