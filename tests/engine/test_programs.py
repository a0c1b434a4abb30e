"""Agents in programs of a user's own: whole runs, both vendors' clients, kills, and what goes
wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.request import proxy_bypass

import httpx
import pytest

import orchestry
from orchestry.cli import main
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import TASK_ERROR, Completion, Message, Turn
from orchestry.engine.estimate import estimate
from orchestry.engine.run import prepare, resume
from orchestry.store.journal import Answered
from orchestry.store.run import Run
from orchestry.task.programs.agent_task import Ask, Team
from orchestry.task.programs.host import Host, Program, Refused
from orchestry.task.registry import load_task
from tests.engine.test_learning import PLUS
from tests.engine.test_learning import model as planted
from tests.models.conftest import ANTHROPIC_ANSWER, OPENAI_ANSWER
from tests.models.loopback import Server, reply, serving

for package in ("aiohttp", "anthropic", "openai"):  # imported before a program's time runs
    pytest.importorskip(package)
TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
BASE = ("task=chatter", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=4")


def config(way: str = "plain", *sets: str) -> RunConfig:
    return resolve([], [*BASE, f"options.way={way}", *sets], {})


def turns(run: Run) -> list[Turn]:
    return [turn for one in run.episodes for node in one.nodes for turn in node.turns]


def tags(run: Run) -> Counter[str]:
    """Of the leaves."""
    found = Counter[str]()
    for one in run.episodes:
        parents = {node.parent for node in one.nodes}
        found.update(tag for n in one.nodes if n.id not in parents for tag in n.score.tags)
    return found


def test_a_program_plays_chains_and_its_calls_are_moves(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    assert run.config["search"]["strategy"] == "chains"
    chains = run.config["search"]["k_samples"]
    assert Counter(turn.agent for turn in turns(run)) == {
        "writer": 4 * chains,
        "critic": 4 * chains,
    }
    first, second = turns(run)[0], next(t for t in turns(run) if t.agent == "critic")
    assert [m.content for m in first.messages] == ["You are writer.", "Write of 0."]
    assert second.messages[1].content.startswith("Of this: ")
    drafts = {t.completion.text for t in turns(run) if t.agent == "writer"}
    assert second.messages[1].content.removeprefix("Of this: ") in drafts
    answered = [event for event in run.events if isinstance(event, Answered)]
    assert len(answered) == run.summary.calls == 4 * chains * 2
    rewards = [one.reward for one in run.episodes]
    assert all(0 < reward < 1 for reward in rewards)
    ends = [node.score.total for node in run.episodes[0].nodes if node.id.count(".") == 3]
    assert len(ends) == chains
    assert rewards[0] == max(ends)


@pytest.mark.slow
def test_chains_of_one_problem_differ_and_runs_repeat(tmp_path: Path) -> None:
    one, other = (orchestry.train(config(), tmp_path / name) for name in "ab")
    texts = [t.completion.text for t in turns(one) if t.messages[-1].content == "Write of 0."]
    assert len(set(texts)) == len(texts) > 1
    assert [t.completion.text for t in turns(one)] == [t.completion.text for t in turns(other)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["together", "claude", "stream", "claude_stream", "responses", "responses_stream"]
)
def test_clients_of_both_vendors_are_answered(way: str, tmp_path: Path) -> None:
    run = orchestry.train(config(way), tmp_path / "run")
    assert not tags(run)
    assert all(one.reward > 0 for one in run.episodes)


@pytest.mark.slow
@pytest.mark.parametrize(("upper", "lower"), [(None, None), ("corp.example", None), ("a", "b")])
def test_no_proxy_is_asked_for_this_machine(
    upper: str | None, lower: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"NO_PROXY": upper, "no_proxy": lower}
    for name, value in {"HTTP_PROXY": "http://127.0.0.1:9", **before}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    run = orchestry.train(config("plain"), tmp_path / "run")
    assert not tags(run)
    assert {name: os.environ.get(name) for name in before} == before


async def test_no_proxy_at_all_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients read it only where it stands alone."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("NO_PROXY", raising=False)
    task: Any = load_task("chatter", task_path=[TASKS])
    async with Host(task).open():
        assert proxy_bypass("other.example")
        assert proxy_bypass("127.0.0.1")


@pytest.mark.parametrize("way", ["tools", "claude_tools", "responses_tools"])
@pytest.mark.slow
def test_a_program_calls_its_own_tools(way: str, tmp_path: Path) -> None:
    """The model's calls go to the program, which tells their results."""
    run = orchestry.train(config(way), tmp_path / "run")
    assert not tags(run)
    called = [turn for turn in turns(run) if turn.completion.calls]
    assert {call.name for turn in called for call in turn.completion.calls} == {"count"}
    after = [turn for turn in turns(run) if turn.messages[-1].role == "tool"]
    assert after
    for turn in after:
        assert turn.messages[-1].content == "three"
        assert turn.messages[-1].call in {c.id for m in turn.messages for c in m.calls}


@pytest.mark.slow
def test_a_run_learns_a_rule_for_a_programs_agent(tmp_path: Path) -> None:
    """At a server whose model writes more where its system prompt holds the rule."""
    sets = [one for one in BASE if "fake" not in one and "episodes" not in one]
    learn = ("episodes=12", "search.k_samples=3", "behaviors.enabled=true", "behaviors.every=3")
    more = ("options.way=long", "cache.enabled=false")
    with planted() as (_, where):
        run = orchestry.train(resolve([], [*sets, *learn, *more, *where], {}), tmp_path / "run")
        evaluated = [orchestry.evaluate(run, "test", update=update) for update in (0, None)]
    assert f"+- {PLUS}" in run.summary.prompt_diff
    last = [turn for turn in turns(run) if turn.agent == "critic"][-1]
    assert last.messages[0].content.startswith("You are critic.\n\n")
    assert PLUS in last.messages[0].content
    began, ended = ([one.mean_leaf_reward for one in each.episodes] for each in evaluated)
    assert min(ended) > max(began)


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
@pytest.mark.parametrize("way", ["tools", "claude_tools", "responses_tools"])
async def test_programs_of_either_form_are_answered_by_either_vendor(
    vendor: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real SDKs on both sides, real HTTP; only the model is scripted."""
    monkeypatch.setenv(f"{vendor.upper()}_API_KEY", "none-needed-here")
    held = list[Server]()

    def reaction(number: int) -> bytes:
        body = held[0].bodies[number]
        calls = "three" not in json.dumps(body["messages"])
        if vendor == "anthropic":
            call = {"type": "tool_use", "id": "c", "name": "count", "input": {"of": "e"}}
            text = {"type": "text", "text": "It is three."}
            return reply({**ANTHROPIC_ANSWER, "content": [call if calls else text]})
        function = {"name": "count", "arguments": json.dumps({"of": "e"})}
        asked = {"id": "c", "type": "function", "function": function}
        said = {"content": None, "tool_calls": [asked]} if calls else {"content": "It is three."}
        return reply({**OPENAI_ANSWER, "choices": [{"index": 0, "message": said}]})

    async with serving(reaction) as server:
        held.append(server)
        where = (f"provider.name={vendor}", "provider.model=m", f"provider.base_url={server.url}")
        more = ("prices.m.input=1", "prices.m.output=5", "episodes=2", "search.k_samples=2")
        off = ("behaviors.enabled=false", "judge.enabled=false", f"options.way={way}")
        sets = resolve([], [*BASE[:2], *where, *more, *off], {})
        run = await asyncio.to_thread(orchestry.train, sets, tmp_path / "run")
    assert not tags(run)
    said = Counter(turn.completion.text for turn in turns(run))
    assert said == {"": 4, "It is three.": 4}
    calls = [call for turn in turns(run) for call in turn.completion.calls]
    assert [call.given for call in calls] == [{"of": "e"}] * 4
    assert run.summary.calls == len(server.bodies)
    assert 0 < run.summary.cost_usd < 1.0


def test_what_was_learned_stands_in_the_systems_prompt(tmp_path: Path) -> None:
    goal = "agents.writer.system_prompt=Count to ten first."
    run = orchestry.train(config("plain", goal), tmp_path / "run")
    writer, critic = (
        next(t for t in turns(run) if t.agent == role) for role in ("writer", "critic")
    )
    assert writer.messages[0].content == "You are writer.\n\nCount to ten first."
    assert critic.messages[0].content == "You are critic."


@pytest.mark.slow
def test_a_resume_asks_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies by SIGKILL, in the middle of episodes."""
    whole = orchestry.train(config("plain", "search.concurrency=1"), tmp_path / "whole")
    folder, noted = tmp_path / "run", tmp_path / "noted"
    sets = [*BASE, "search.concurrency=1", "provider.fake.latency_s=0.05"]
    command = [sys.executable, "-m", "orchestry", "run", "--run-dir", str(folder), "--trust"]
    told = [word for one in sets for word in ("--set", one)]
    with subprocess.Popen([*command, *told], env={**os.environ, "CHATTER": str(noted)}) as process:
        while process.poll() is None and _answers(folder) < whole.summary.calls // 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    before = _answers(folder)
    assert 0 < before < whole.summary.calls
    run = resume(folder)
    assert _answers(folder) == whole.summary.calls
    assert [t.completion.text for t in turns(run)] == [t.completion.text for t in turns(whole)]


def _answers(folder: Path) -> int:
    """In the journal so far."""
    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum('"answered"' in line for line in lines)


def test_a_program_that_raises_earns_nothing_and_the_run_goes_on(tmp_path: Path) -> None:
    run = orchestry.train(config("raises"), tmp_path / "run")
    found = tags(run)
    assert 0 < found[TASK_ERROR] < len(turns(run)) // 2
    feedback = [n.score.feedback for one in run.episodes for n in one.nodes]
    assert any("play raised ValueError: no e, please on problem" in text for text in feedback)


@pytest.mark.slow
def test_a_program_that_hangs_is_given_up(tmp_path: Path) -> None:
    run = orchestry.train(config("hangs", "options.patience=5"), tmp_path / "run")
    feedback = [n.score.feedback for one in run.episodes for n in one.nodes]
    assert any("made no call and did not end for 5 s" in text for text in feedback)
    assert tags(run)[TASK_ERROR] == run.config["search"]["k_samples"]


@pytest.mark.slow
def test_a_program_that_always_fails_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"play gave a str on problem .*: return a Score"):
        orchestry.train(config("wrong"), tmp_path / "run")
    with pytest.raises(TaskError, match="this rollout has made its 4 calls"):
        orchestry.train(config("many"), tmp_path / "many")
    with pytest.raises(TaskError, match="play ended without asking an agent on problem"):
        orchestry.train(config("silent"), tmp_path / "silent")


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        (["baseline=concat"], "can't be arranged anew as baseline concat"),
        (["agents.writer.infer=true"], "infer and chain are for tasks that prompt"),
        (["backend=local", "search.branch=tree"], "only starts from its beginning"),
        (["backend=local", "learn.credit=replay"], "only starts from its beginning"),
    ],
)
def test_what_needs_a_branch_is_refused(sets: list[str], text: str) -> None:
    unset = ["provider.name=fake"] if "backend=local" in sets else []
    with pytest.raises(ConfigError, match=text):
        prepare(resolve([], [one for one in (*BASE, *sets) if one not in unset], {}))


def test_a_dry_run_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATTER", str(tmp_path / "noted"))
    found = estimate(config())
    assert found.calls == 4 * 4 * 4  # problems, rollouts, max_turns
    assert not (tmp_path / "noted").exists()


def test_the_cap_holds(tmp_path: Path) -> None:
    prices = ("prices.fake-1.input=1000", "prices.fake-1.output=1000", "budget.usd=2")
    run = orchestry.train(config("plain", *prices), tmp_path / "run")
    assert run.summary.stopped == "budget"
    assert run.summary.cost_usd <= 2


DEEP: dict[str, Any] = reduce(lambda part, _: {"items": part}, range(400), {})
CHAT: list[dict[str, Any]] = [
    {"n": 2},
    {"messages": []},
    {"messages": [{}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    {"max_tokens": "x"},
    {"max_tokens": -2},
    {"max_tokens": 2.5},
    {"max_tokens": True},
    {"stop": 5},
    {"stop": [1]},
    {"tools": [{}]},
    {"tools": {}},
    {"tools": [{"type": "function", "function": {"name": "a b!"}}]},
    {"tools": [{"function": {"name": "f", "parameters": DEEP}}]},
    {"tool_choice": "required"},
    {"tool_choice": 5},
    {"response_format": "json"},
    {"response_format": {"type": "json_object"}},
    {"functions": [{"name": "f"}]},
    {"logprobs": True},
]
CLAUDE: list[dict[str, Any]] = [
    {"tool_choice": {"type": "any"}},
    {"stop_sequences": 5},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"max_tokens": -2},
    {"output_format": {"type": "json_schema"}},
    {"messages": [{"role": "robot", "content": "a"}]},
]
RESPONSES: list[dict[str, Any]] = [
    {"input": []},
    {"input": 5},
    {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    {"input": [{"type": "computer_call", "call_id": "c"}]},
    {"input": [{"role": "robot", "content": "a"}]},
    {"previous_response_id": "resp_1"},
    {"conversation": "conv_1"},
    {"background": True},
    {"tools": [{"type": "web_search"}]},
    {"tool_choice": {"type": "function", "name": "f"}},
    {"max_output_tokens": -2},
    {"input": [{"role": "user", "content": "a"}, {"type": "function_call", "name": "f"}]},
    {"input": [{"role": "user", "content": "a"}, {"type": "function_call_output"}]},
    {"tools": [{"type": "custom", "name": "f"}]},
    {"include": ["message.output_text.logprobs"]},
    {"response_format": {"type": "json_schema"}},
    {"text": "json"},
    {"text": {"format": "json_object"}},
    {"text": {"format": {"type": "json_object"}}},
]
FORMS = (("chat/completions", CHAT), ("messages", CLAUDE), ("responses", RESPONSES))
TEXTS = ["{", "[1]", "[" * 100_000, '{"messages": NaN}']


def asked(program: Callable[[Any, Team], Any]) -> None:
    """Runs one rollout of a program at a real address, without a run."""
    task: Any = load_task("chatter", [TASKS])
    failed = list[BaseException]()

    def play(problem: Any, team: Team) -> Any:
        try:
            program(task, team)
        except BaseException as error:
            failed.append(error)
        return task.score(quality=1.0)

    task.play = play

    async def run() -> None:
        async with Host(task).open() as host:
            with host.rollouts() as rollouts:
                problem = task.problems("train")[0]
                state = await rollouts.start(task.reset(problem, 0), 0)
                assert state.fault is not None
                assert "without asking an agent" in str(state.fault)

    asyncio.run(run())
    if failed:
        raise failed[0]


def post(address: str, team: Team, key: str = "", **body: Any) -> httpx.Response:
    asked = [{"role": "user", "content": "a"}]
    told = {"input" if address.endswith("responses") else "messages": asked, **body}
    head = {b"Authorization": f"Bearer {key or team.key}".encode("latin-1")}
    return httpx.post(address, content=json.dumps(told), headers=head, timeout=30)


@pytest.mark.slow
def test_what_cannot_be_answered_is_refused_with_a_reason() -> None:
    def program(task: Any, team: Team) -> None:
        url = team.base_url("writer")
        for place, wrong in FORMS:
            for body in wrong:
                found = post(f"{url}/{place}", team, **body)
                assert found.status_code == 400, (body, found.text)
                assert len(found.json()["error"]["message"]) > 10
        for text in TEXTS:
            head = {"x-api-key": team.key}
            found = httpx.post(f"{url}/chat/completions", content=text, headers=head, timeout=30)
            assert found.status_code == 400, (text[:20], found.text)

    asked(program)


def test_the_address_answers_only_who_it_is_for() -> None:
    def program(task: Any, team: Team) -> None:
        chat = f"{team.base_url('writer')}/chat/completions"
        told = {
            "key": post(chat, team, key="another"),
            "no text": post(chat, team, key="\xff"),
            "role": post(chat.replace("writer", "reader"), team),
            "model": post(f"{team.url}/chat/completions", team, model="reader"),
            "rollout": post(chat.replace("/rollout/", "/rollout/9"), team),
            "path": post(f"{team.url}/audio", team),
        }
        codes = {name: answer.status_code for name, answer in told.items()}
        wrong = {"key": 401, "no text": 401, "role": 404, "model": 404, "rollout": 410, "path": 404}
        assert codes == wrong
        said = {name: answer.json()["error"]["message"] for name, answer in told.items()}
        assert "api_key=team.key" in said["key"]
        assert "only writer, critic" in said["role"]
        assert "as the model" in said["model"]
        assert "is not answered here, only /chat/completions, /completions, /mess" in said["path"]
        with pytest.raises(TaskError, match="the team has no agent 'reader'"):
            team.base_url("reader")

    asked(program)


@pytest.mark.slow
def test_of_all_baselines_a_program_plays_best_of_n(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--task", "chatter", "--task-path", str(TASKS), "--provider", "fake"]
    with pytest.raises(SystemExit) as exited:
        main(["baselines", "run", "all", *given, "--samples", "1", "--out", str(tmp_path / "b")])
    assert exited.value.code == 0
    assert [one.name.partition("--")[0] for one in (tmp_path / "b").iterdir()] == ["best_of_n"]
    assert capsys.readouterr().err.count("left out: task chatter is played by a program") == 5


def test_a_call_that_its_client_gave_up_frees_its_place() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        task: Any = load_task("chatter", [TASKS])
        program = Program(task, task.problems("train")[0], Team(("writer",), 0, "", ""), loop)
        ask = Ask("writer", (Message(role="user", content="a"),))
        first, second = (loop.create_task(program.ask(ask)) for _ in range(2))
        state = await program._settled(task.reset(program.problem, 0))
        assert len(state.asks) == 1  # a role's other calls wait for its first one
        second.cancel()
        await asyncio.sleep(0)
        assert program._calls == 1
        long = Completion(text="", model="m", stop="too_long")
        turn = Turn(agent="writer", messages=ask.messages, completion=long)
        going = loop.create_task(program.go_on(state, [turn]))
        with pytest.raises(Refused, match="context_length_exceeded"):
            await first
        program.close()
        going.cancel()
        with pytest.raises(Refused, match="this rollout is over"):
            await program.ask(ask)

    asyncio.run(run())


def test_what_is_to_end_with_a_rollout_ends_at_once_in_one_that_is_over() -> None:
    team, ended = Team(("a/b",), 0, "", "http://h/rollout/1"), list[str]()
    team.at_end(lambda: ended.append("early"))
    team.close()
    team.at_end(lambda: ended.append("late"))
    assert ended == ["early", "late"]
    assert team.base_url("a/b") == "http://h/rollout/1/a%2Fb/v1"
