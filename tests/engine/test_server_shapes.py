"""Whole runs at servers in other shapes than OpenAI's own: what agents and programs are told, what
is scored, and what the means leave out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import orchestry
from orchestry.cli.show import figures
from orchestry.core.config import RunConfig, resolve
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import prepare, run_plan
from orchestry.report.document import results
from orchestry.report.page import write_page
from orchestry.report.runs import Salvaged, read_experiments
from orchestry.store.run import Run
from tests.engine.test_run import Noted
from tests.models.conftest import ANTHROPIC_ANSWER, KEY, OPENAI_ANSWER
from tests.models.loopback import Server, reply, serving
from tests.models.test_shapes import ADDED, CALL, SIGNED, chat, claude

for package in ("aiohttp", "anthropic", "openai"):  # imported before a program's time runs
    pytest.importorskip(package)
TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def config(url: str, *sets: str, vendor: str = "openai") -> RunConfig:
    where = (f"provider.name={vendor}", "provider.model=m", f"provider.base_url={url}")
    more = ("prices.m.input=1", "prices.m.output=5", "cache.enabled=false")
    off = ("behaviors.enabled=false", "judge.enabled=false", "retry.base_s=0.001")
    return resolve([], [f"task_path=[{TASKS}]", *where, *more, *off, *sets], {})


WORDS = ("task=words", "search.beam_width=1")


async def played(
    answer: Callable[[dict[str, Any]], bytes], folder: Path, *sets: str, vendor: str = "openai"
) -> tuple[Run, Server, list[str]]:
    """A run at a server that answers by the request's body; and the run's notes."""
    held, watch = list[Server](), Noted()
    async with serving(lambda number: answer(held[0].bodies[number])) as server:
        held.append(server)
        plan = prepare(config(server.url, *sets, vendor=vendor))
        run = await asyncio.to_thread(run_plan, plan, folder, watch)
    return run, server, watch.notes


# --- thoughts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [True, False])
async def test_thoughts_are_not_scored_and_no_partner_sees_them(
    split: bool, tmp_path: Path
) -> None:
    said = "<think>A hidden plan.</think>Rain falls."
    sets = (*WORDS, "episodes=1", "search.k_samples=1", f"provider.split_thoughts={split}")
    run, server, notes = await played(lambda body: chat({"content": said}), tmp_path / "run", *sets)
    (reward,) = run.rewards
    assert reward == len("Rain falls." if split else said) % 101 / 100
    told = json.dumps([body["messages"] for body in server.bodies])
    assert "Rain falls." in told
    assert ("hidden plan" in told) != split
    assert "hidden plan" in (run.folder / "journal.jsonl").read_text()
    assert not [note for note in notes if "token limit" in note]


@pytest.mark.parametrize(
    "message",
    [
        {"content": "", "reasoning_content": "Let me think about it"},
        {"content": None},
        {"content": "<think>Let me think about it"},
        {"content": [{"type": "thinking", "thinking": "hm"}]},
    ],
    ids=str,
)
async def test_thoughts_that_used_up_the_limit_are_counted_and_the_setting_is_named(
    message: dict[str, Any], tmp_path: Path
) -> None:
    def answer(body: dict[str, Any]) -> bytes:
        return chat(message, "length") if "words on 0" in str(body) else chat({"content": "Hi"})

    sets = (*WORDS, "episodes=5", "search.k_samples=1", "agents.reviewer.max_tokens=77")
    run, _, notes = await played(answer, tmp_path / "run", *sets)
    (line,) = [note for note in notes if "token limit" in note]
    assert line.startswith("3 answers reached their token limit before any visible text")
    assert "sampling.max_tokens (now 512)" in line
    assert "agents.reviewer.max_tokens (now 77)" in line
    assert {row.agent: row.unspoken for row in run.summary.usage} == dict.fromkeys(
        ("writer", "reviewer", "refactorer"), 1
    )
    assert Salvaged(run.folder).summary.usage == run.summary.usage


# --- what the means leave out ---------------------------------------------------------------------


def refusing(odd: str, every: int = 1) -> Callable[[dict[str, Any]], bytes]:
    """Refuses each `every`-th call on a problem."""
    seen = list[str]()

    def answer(body: dict[str, Any]) -> bytes:
        if odd in str(body["messages"]):
            seen.append(odd)
            if len(seen) % every == 0:
                why = f"no luck with these {1000 + len(seen)} words"
                return reply({"error": {"message": why}}, 400)
        return reply(OPENAI_ANSWER)

    return answer


def panel(run: Run) -> str:
    out = StringIO()
    Console(file=out, width=300).print(figures(run.summary))
    return out.getvalue()


async def test_a_mean_says_what_it_leaves_out_and_is_marked(tmp_path: Path) -> None:
    sets = (*WORDS, "episodes=5", "search.k_samples=2", "search.strategy=best_of_n")
    run, _, _ = await played(refusing("words on 0"), tmp_path / "run", *sets)
    found = run.summary
    assert (found.failed_episodes, found.trajectories, found.partial) == (1, 8, True)
    (why,) = found.left_out
    assert "answered 400: no luck with these 100" in why
    assert list(found.left_out.values()) == [2], "they differ in a number alone"
    assert list(found.left_out_episodes.values()) == [1]
    plain = json.loads(found.model_dump_json())
    assert plain["partial"] is True
    said = "2 of 10 trajectories and 1 of 5 episodes (2: openai at "
    assert said in panel(run)
    assert "(partial: mean over all trajectories but those left out)" in panel(run)
    left = Salvaged(run.folder)
    (gap,) = [what for what in left.missing if "no mean" in what]
    assert said in gap
    assert gap.endswith("so the means are partial")
    kept = {"left_out", "left_out_episodes", "partial", "trajectories", "mean_reward"}
    (run.folder / "summary.json").unlink()
    assert left.summary.model_dump(include=kept) == found.model_dump(include=kept)
    experiments = read_experiments([run.folder])
    assert "the means are partial" in results(experiments, [], "orchestry report")
    page = write_page(experiments, tmp_path / "out").read_text()
    assert "the means are partial" in page
    assert '"partial":true' in page.replace(" ", "")


@pytest.mark.parametrize(("every", "partial"), [(12, True), (40, False)])
async def test_samples_that_are_missing_count_too(
    every: int, partial: bool, tmp_path: Path
) -> None:
    """An episode of which some trajectories are left goes into the mean, with a bias as well."""
    sets = (*WORDS, "episodes=5", "search.k_samples=4", "search.strategy=best_of_n")
    run, _, _ = await played(refusing("words on", every), tmp_path / "run", *sets)
    found = run.summary
    assert found.failed_episodes == 0
    assert sum(found.left_out.values()) + found.trajectories == 20
    assert found.partial == partial
    assert ("partial" in panel(run)) == partial
    assert "left out" in panel(run)


async def test_a_whole_mean_has_no_mark(tmp_path: Path) -> None:
    sets = (*WORDS, "episodes=2", "search.k_samples=2")
    run, _, _ = await played(refusing("no such words"), tmp_path / "run", *sets)
    assert not run.summary.left_out
    assert not run.summary.partial
    assert "left out" not in panel(run)
    assert "left_out" not in (run.folder / "episodes.jsonl").read_text()
    assert not [what for what in Salvaged(run.folder).missing if "no mean" in what]


async def test_an_evaluation_says_it_too(tmp_path: Path) -> None:
    answer, held = refusing("no such words"), list[Server]()
    async with serving(lambda number: answer(held[0].bodies[number])) as server:
        held.append(server)
        sets = config(server.url, *WORDS, "episodes=1", "search.k_samples=1", "split=train")
        run = await asyncio.to_thread(orchestry.train, sets, tmp_path / "run")
        answer = refusing("words on 1")
        found = await asyncio.to_thread(evaluate, run.folder, "test")
    assert found.summary.left_out_episodes
    assert found.summary.partial
    assert "1 of 5 episodes" in panel(found)


async def test_one_team_earns_the_same_whatever_words_a_server_has_for_too_long(
    tmp_path: Path,
) -> None:
    """Prompts that do not fit count as empty answers; they leave no mean."""
    words: tuple[dict[str, Any], ...] = (
        {"error": {"message": "Your input exceeds the context window of this model."}},
        {"object": "error", "message": "maximum context length is 4096 tokens", "code": 400},
        {"error": {"message": "prompt is too long: 9000 tokens > 8192 maximum"}},
    )
    rewards = set[float | None]()
    for number, body in enumerate(words):
        refused = reply(body, (400, 413, 422)[number])

        def answer(asked: dict[str, Any], refused: bytes = refused) -> bytes:
            return refused if "words on 0" in str(asked) else reply(OPENAI_ANSWER)

        sets = (*WORDS, "episodes=5", "search.k_samples=2")
        run, _, _ = await played(answer, tmp_path / str(number), *sets)
        assert not run.summary.partial
        rewards.add(run.summary.mean_reward)
    assert len(rewards) == 1
    assert rewards.pop() == pytest.approx(4 / 5 * len("Hello") / 100)


# --- programs -----------------------------------------------------------------------------------

USE: dict[str, Any] = {
    "type": "tool_use",
    "id": "c",
    "name": "count",
    "input": {"of": "e"},
    "sig": "s/+=",
}
COUNT = {**CALL, "function": {**CALL["function"], "name": "count", "arguments": {"of": "e"}}}


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
@pytest.mark.parametrize("way", ["tools", "claude_tools", "responses_tools"])
async def test_programs_hand_back_what_a_server_added_and_lose_no_argument(
    way: str, vendor: str, tmp_path: Path
) -> None:
    """Vendors' real clients on both sides; arguments come as an object."""

    def answer(body: dict[str, Any]) -> bytes:
        if "three" in json.dumps(body["messages"]):
            end = [{"type": "text", "text": "Three."}]
            return chat({"content": "Three."}) if vendor == "openai" else claude(*end)
        if vendor == "openai":
            return chat({"content": None, **ADDED, "tool_calls": [COUNT]}, "tool_calls")
        return claude(*SIGNED, USE, stop_reason="tool_use")

    sets = ("task=chatter", f"options.way={way}", "episodes=1", "search.k_samples=1")
    run, server, _ = await played(answer, tmp_path / "run", *sets, vendor=vendor)
    assert not run.failed
    calls = [
        call
        for episode in run.episodes
        for node in episode.nodes
        for turn in node.turns
        for call in turn.completion.calls
    ]
    assert [call.given for call in calls] == [{"of": "e"}]
    said = next(one for one in server.bodies[1]["messages"] if one["role"] == "assistant")
    if vendor == "anthropic":
        assert said["content"][: len(SIGNED)] == SIGNED
        assert said["content"][-1] == {**USE, "id": said["content"][-1]["id"]}
    else:
        assert {name: said[name] for name in ADDED} == ADDED
        (call,) = said["tool_calls"]
        assert call["extra_content"] == CALL["extra_content"]
        assert json.loads(call["function"]["arguments"]) == {"of": "e"}
        assert "Two and two." not in str(said["content"])


async def test_a_mixed_team_goes_on_with_the_same_calls_at_another_vendor(tmp_path: Path) -> None:
    """A program may give one agent's chat to another, whose vendor has other ids."""
    function = {**CALL["function"], "name": "add<|channel|>json"}
    call = {**CALL, "id": "a|b c" * 20, "function": function}
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "3"},
    ]
    bodies = json.dumps([["/chat/completions", {"messages": history}]])
    for vendor, raw in (("openai", OPENAI_ANSWER), ("anthropic", ANTHROPIC_ANSWER)):
        sets = ("task=poster", f"options.bodies={bodies}", "episodes=1", "search.k_samples=1")
        run, server, _ = await played(
            lambda body, raw=raw: reply(raw),  # type: ignore[misc]
            tmp_path / vendor,
            *sets,
            vendor=vendor,
        )
        assert not run.failed
        told = json.dumps(server.bodies[1]["messages"])
        assert "a|b" not in told
        assert "<|channel|>" not in told


async def test_a_key_in_an_addresss_query_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(chat({"content": "sent key=very-secret-1"})) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1?api-version=1&key=very-secret-1")
        plain = config("", *WORDS, "provider.base_url=null", "episodes=1", "search.k_samples=1")
        watch = Noted()
        run = await asyncio.to_thread(run_plan, prepare(plain), tmp_path / "run", watch)
    assert server.paths[0] == "/v1/chat/completions?api-version=1&key=very-secret-1"
    files = [path.read_bytes() for path in run.folder.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not any(b"very-secret-1" in text for text in files)
    assert "very-secret-1" not in str(watch.notes)
