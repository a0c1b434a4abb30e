"""Agents that call tools: whole runs, kills in the middle of a call, replays and limits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry import tools
from orchestry.backends.tools import CUT_OFF, LAST, Toolbox, WithTools
from orchestry.core.concurrency import together
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError, Interrupted
from orchestry.core.tools import TOO_MANY, ToolCall
from orchestry.core.types import AgentSpec, Completion, Message, Problem, Request
from orchestry.engine.estimate import estimate
from orchestry.engine.run import prepare, resume
from orchestry.report.examples import trajectories
from orchestry.report.runs import read_experiments
from orchestry.store.journal import Answered, Journal, Used, read
from orchestry.store.run import Run, load_run
from tests.engine.test_run import artefacts
from tests.journals import write_journal
from tests.models.conftest import ANTHROPIC_ANSWER, OPENAI_ANSWER
from tests.models.loopback import Server, reply, serving

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
BASE = ("task=errands", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=4")


@pytest.fixture(autouse=True)
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the task's tools note their calls."""
    monkeypatch.setenv("ERRANDS", str(tmp_path / "noted"))
    return tmp_path / "noted"


def config(*sets: str) -> RunConfig:
    return resolve([], [*BASE, *sets], {})


def command(folder: Path) -> list[str]:
    """A run of the task in a process of its own, one call at a time."""
    run = [sys.executable, "-m", "orchestry", "run", "--run-dir", str(folder), "--trust"]
    return [*run, *(word for one in (*BASE, "search.concurrency=1") for word in ("--set", one))]


def steps(run: Run) -> list[Any]:
    """All rounds of calls in a run's episodes."""
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    return [step for turn in turns for step in turn.completion.steps]


def test_a_move_is_a_loop_of_calls(tmp_path: Path, noted: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    assert {turn.agent for turn in turns if turn.completion.steps} == {"runner"}
    assert all(turn.completion.text and not turn.completion.calls for turn in turns)
    assert {len(turn.completion.steps) for turn in turns if turn.agent == "runner"} == {0, 1, 2, 3}
    told = [result for step in steps(run) for result in step.results]
    assert all(" of " in text or '"for":"runner"' in text for text in told)
    used = [event for event in run.events if isinstance(event, Used)]
    ended = [event for event in used if event.result is not None]
    assert len(ended) == len(noted.read_text().splitlines())
    begun = Counter(event.tool for event in used if event.result is None)
    assert begun == {"fetch": sum(event.tool == "fetch" for event in ended)}


def test_the_figures_count_every_call(tmp_path: Path) -> None:
    prices = ("prices.fake-1.input=1", "prices.fake-1.output=5")
    run = orchestry.train(config(*prices), tmp_path / "run")
    answers = [event for event in run.events if isinstance(event, Answered)]
    assert steps(run)
    assert run.summary.calls == len(answers) == sum(one.calls for one in run.episodes)
    paid = sum(event.completion.usd for event in answers)
    assert sum(one.usd for one in run.episodes) == pytest.approx(paid)
    assert run.summary.cost_usd == pytest.approx(paid)


def test_a_resume_calls_no_tool_again(tmp_path: Path, noted: Path) -> None:
    whole = orchestry.train(config(), tmp_path / "whole")
    count = len(whole.events)
    for kept in (count // 4, count // 2, count - 3):
        folder = tmp_path / str(kept)
        orchestry.train(config(), folder)
        before = len(noted.read_text().splitlines())
        first = load_run(folder).events[:kept]
        left = [e for e in first if isinstance(e, Used) and e.result is not None]
        ends = {event.key for event in left}
        (folder / "episodes.jsonl").unlink()
        write_journal(folder, [e for e in first if not isinstance(e, Used) or e.key in ends])
        resume(folder)
        assert artefacts(folder) == artefacts(tmp_path / "whole")
        assert len(noted.read_text().splitlines()) == before + _ended(whole) - len(left)


@pytest.mark.slow
def test_a_call_that_a_kill_cut_off_is_not_made_again(tmp_path: Path, noted: Path) -> None:
    """The process dies by SIGKILL inside the tool."""
    kill = Path(f"{noted}.kill")
    kill.touch()
    folder = tmp_path / "run"
    ended = subprocess.run(command(folder), capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    first = noted.read_text().splitlines()
    assert first[-1].startswith("fetch ")
    before = _ended(load_run(folder))
    kill.unlink()
    run = resume(folder)
    lines = noted.read_text().splitlines()
    assert CUT_OFF in [result for step in steps(run) for result in step.results]
    assert lines[: len(first)] == first
    assert len(lines) - len(first) == _ended(run) - before


def _ended(run: Run) -> int:
    """Calls of tools that came to an end."""
    return sum(isinstance(event, Used) and event.result is not None for event in run.events)


def test_a_replay_calls_no_tool(tmp_path: Path, noted: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    noted.unlink()
    again = orchestry.train(
        config("provider.name=recorded", f"provider.recording={run.folder}"), tmp_path / "again"
    )
    assert not noted.exists()
    assert steps(again) == [
        one.model_copy(update={"said": again_said}) for one, again_said in _said(run, again)
    ]
    assert again.rewards == run.rewards


def test_a_replay_of_one_agent_or_of_a_replay_calls_no_tool(tmp_path: Path, noted: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    noted.unlink()
    own = [f"agents.runner.provider.{key}" for key in ("name=recorded", f"recording={run.folder}")]
    one = orchestry.train(config(*own), tmp_path / "one")
    assert [step.results for step in steps(one)] == [step.results for step in steps(run)]
    for source, name in ((run, "first"), (tmp_path / "first", "second")):
        place = source if isinstance(source, Path) else source.folder
        recorded = ("provider.name=recorded", f"provider.recording={place}")
        again = orchestry.train(config(*recorded), tmp_path / name)
        assert [step.results for step in steps(again)] == [step.results for step in steps(run)]
    assert not noted.exists()


def _said(run: Run, again: Run) -> list[tuple[Any, Completion]]:
    """A replay's answers are free."""
    return [(one, two.said) for one, two in zip(steps(run), steps(again), strict=True)]


@pytest.mark.parametrize("most", [1, 2])
def test_the_config_limits_the_calls(tmp_path: Path, most: int) -> None:
    run = orchestry.train(config(f"agents.runner.max_calls={most}"), tmp_path / "run")
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    assert max(len(turn.completion.steps) for turn in turns) == most


def test_the_dry_run_counts_calls_of_tools(noted: Path) -> None:
    def expected(*sets: str) -> float:
        prices = ("prices.fake-1.input=1", "prices.fake-1.output=5")
        return estimate(config(*prices, *sets)).cost_usd.expected

    few, many = expected("agents.runner.max_calls=1"), expected("agents.runner.max_calls=8")
    assert 0 < few < many
    assert not noted.exists()


def test_the_report_shows_the_calls(tmp_path: Path) -> None:
    orchestry.train(config("seed=2"), tmp_path / "run")
    (experiment,) = read_experiments([tmp_path / "run"])
    shown = trajectories(experiment)
    assert "\n[called " in shown


GIVEN = {"item": "tea", "count": 2}


def reaction(vendor: str, body: Mapping[str, Any]) -> bytes:
    """What a server of the vendor's API answers whose model calls `fetch`, and then says what it
    got."""
    got = "2 of tea" in json.dumps(body["messages"])
    text = "2 of tea" if got else "none"
    calls = "tools" in body and not got
    if vendor == "anthropic":
        call = {"type": "tool_use", "id": "c", "name": "fetch", "input": GIVEN}
        return reply({**ANTHROPIC_ANSWER, "content": [call if calls else _block(text)]})
    function = {"name": "fetch", "arguments": json.dumps(GIVEN)}
    call = {"id": "c", "type": "function", "function": function}
    said = {"content": None, "tool_calls": [call]} if calls else {"content": text}
    return reply({**OPENAI_ANSWER, "choices": [{"index": 0, "message": said}]})


def _block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.slow
@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
async def test_a_whole_run_at_a_vendors_server(
    vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real SDKs, real HTTP, the ledger's cap; only the model is scripted."""
    monkeypatch.setenv(f"{vendor.upper()}_API_KEY", "none-needed-here")
    held = list[Server]()
    async with serving(lambda number: reaction(vendor, held[0].bodies[number])) as server:
        held.append(server)
        sets = ("name", vendor), ("model", "m"), ("base_url", server.url), ("timeout_s", 30)
        asked = resolve(
            [],
            [
                *BASE[:2],
                *(f"provider.{key}={value}" for key, value in sets),
                *("prices.m.input=1", "prices.m.output=5", "episodes=2", "budget.usd=1"),
                *("behaviors.enabled=false", "judge.enabled=false"),
            ],
            {},
        )
        run = await asyncio.to_thread(orchestry.train, asked, tmp_path / "run")
    moves = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    runners = [turn.completion for turn in moves if turn.agent == "runner"]
    assert all(move.text == "2 of tea" and len(move.steps) == 1 for move in runners)
    assert {step.results for step in steps(run)} == {("2 of tea",)}
    assert run.summary.calls == len(server.bodies) == sum(one.calls for one in run.episodes)
    assert 0 < run.summary.cost_usd < 1.0


class Scripted:
    """A policy that gives these answers in turn, and keeps what it was asked."""

    def __init__(self, *answers: Completion) -> None:
        self.left, self.asked = list(answers), list[Request]()

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        self.asked += requests
        return [[self.left.pop(0) for _ in range(n)] for _ in requests]


def add(first: int, second: int = 2) -> int:
    """Adds."""
    return first + second


def said(text: str, *calls: tuple[str, str], **fields: Any) -> Completion:
    made = (ToolCall(id=f"c{n}", name=name, arguments=arg) for n, (name, arg) in enumerate(calls))
    usage = {"input_tokens": 10, "output_tokens": 2, "usd": 1.0}
    return Completion(text=text, model="m", calls=tuple(made), **{**usage, **fields})


async def moved(tmp_path: Path, *answers: Completion, most: int = 8) -> tuple[Completion, Scripted]:
    """One move of an agent with one tool, whose model answers so."""
    spec = AgentSpec(role="solver", tools=(add,), max_calls=most)
    policy, sandbox = Scripted(*answers), None
    toolbox = Toolbox([spec], sandbox, Journal(tmp_path / "journal.jsonl"), [])  # type: ignore[arg-type]
    request = Request(
        agent="solver",
        model="m",
        messages=(Message(role="user", content="add"),),
        max_tokens=10,
        tools=tuple(one.spec for one in spec.every_tool),
        problem=Problem(id="one", prompt="add"),
    )
    (((answer,),)) = await WithTools(policy, toolbox).sample([request], 1)
    return answer, policy


async def test_parallel_calls_and_wrong_ones_have_results_in_order(tmp_path: Path) -> None:
    calls = [("add", '{"first": 1}'), ("sub", "{}"), ("add", "{}"), ("add", '{"first": 5}')]
    answer, policy = await moved(tmp_path, said("I add", *calls), said("done"))
    (step,) = answer.steps
    assert step.results[0] == "3"
    assert step.results[1] == "error: there is no tool 'sub', only add"
    assert step.results[2].startswith("error: wrong arguments of add: ")
    assert step.results[3] == "7"
    shown = policy.asked[1].messages
    assert [one.role for one in shown] == ["user", "assistant", "tool", "tool", "tool", "tool"]
    assert [one.call for one in shown[2:]] == ["c0", "c1", "c2", "c3"]
    assert (answer.text, answer.usd, answer.input_tokens, answer.output_tokens) == (
        "done",
        2.0,
        20,
        4,
    )
    assert not policy.asked[1].must_answer


async def test_the_last_call_allowed_is_followed_by_an_answer(tmp_path: Path) -> None:
    call = ("add", '{"first": 1}')
    answer, policy = await moved(tmp_path, said("", call), said("", call, call), said("x"), most=2)
    assert [step.results for step in answer.steps] == [("3",), ("3", TOO_MANY)]
    last = policy.asked[-1].messages[-1].content
    assert last == f"{TOO_MANY}\n\n{LAST}", "weights are told by text alone"
    assert LAST not in str(policy.asked[1].messages)
    assert [one.must_answer for one in policy.asked] == [False, False, True]


async def test_a_model_that_calls_although_it_must_answer_ends_its_move(tmp_path: Path) -> None:
    call = ("add", '{"first": 1}')
    answer, policy = await moved(tmp_path, said("", call), said("so", call), most=1)
    assert (answer.text, len(answer.steps), len(policy.asked)) == ("so", 1, 2)


async def test_a_call_of_the_model_that_failed_for_good_fails_the_sample(tmp_path: Path) -> None:
    call = ("add", '{"first": 1}')
    answer, _ = await moved(tmp_path, said("", call), said("", failed="the server is gone"))
    assert answer.failed == "the server is gone"


async def test_one_call_asked_for_twice_at_once_is_made_once(tmp_path: Path) -> None:
    """Plays with common random numbers ask the same."""
    count = Counter[str]()

    async def visit(place: str) -> str:
        """Goes there."""
        count[place] += 1
        return f"{count[place]} visits"

    spec = AgentSpec(role="solver", tools=(visit,))
    toolbox = Toolbox([spec], None, Journal(tmp_path / "journal.jsonl"), [])  # type: ignore[arg-type]
    request = Request(
        agent="solver",
        model="m",
        messages=(Message(role="user", content="go"),),
        max_tokens=10,
        problem=Problem(id="one", prompt="go"),
    )
    asked = said("", ("visit", '{"place": "home"}'))
    found = await together(toolbox.results(request, (), asked) for _ in range(3))
    assert found == [("1 visits",)] * 3
    assert await toolbox.results(request, (), asked) == ("1 visits",)


def _visiting(
    tmp_path: Path, function: Any, events: Sequence[Any] = (), **more: Any
) -> tuple[Toolbox, Request]:
    """The toolbox of one agent with one tool, and a request of it."""
    spec = AgentSpec(role="solver", tools=(function,))
    path = tmp_path / str(len(list(tmp_path.iterdir()))) / "journal.jsonl"
    path.parent.mkdir()
    toolbox = Toolbox([spec], None, Journal(path), events, **more)  # type: ignore[arg-type]
    request = Request(
        agent="solver",
        model="m",
        messages=(Message(role="user", content="go"),),
        max_tokens=10,
        problem=Problem(id="one", prompt="go"),
    )
    return toolbox, request


async def test_a_result_is_that_of_its_own_call_alone(tmp_path: Path) -> None:
    """Weights that are drawn from again may call something else in answer to the same request."""
    toolbox, request = _visiting(tmp_path, add)
    assert await toolbox.results(request, (), said("", ("add", '{"first": 1}'))) == ("3",)
    events = load_events(tmp_path)
    again, _ = _visiting(tmp_path, add, events)
    assert await again.results(request, (), said("", ("add", '{"first": 2}'))) == ("4",)
    assert await again.results(request, (), said("", ("add", '{"first": 1}'))) == ("3",)
    (unknown,) = await again.results(request, (), said("", ("sub", '{"first": 1}')))
    assert unknown.startswith("error: there is no tool 'sub'")


def load_events(folder: Path) -> list[Any]:
    """The events of the first journal in a folder."""
    return list(read(folder / "0" / "journal.jsonl"))


async def test_a_result_depends_on_what_was_called_before_and_on_the_way_there(
    tmp_path: Path,
) -> None:
    def seen(here: tools.ToolContext) -> str:
        """Says where it is."""
        return f"{here.state} after {len(here.made)}"

    toolbox, request = _visiting(tmp_path, tools.tool(seen, effects=False))
    first = request.model_copy(update={"state": "here", "path": "1"})
    second = request.model_copy(update={"state": "there", "path": "2"})
    once, twice = said("", ("seen", "{}")), said("", ("seen", '{"odd": 1}'), ("seen", "{}"))
    assert await toolbox.results(first, (), once) == ("here after 0",)
    assert await toolbox.results(second, (), once) == ("there after 0",)
    assert (await toolbox.results(first, (), twice))[1] == "here after 1"


async def test_secrets_of_the_environment_are_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "sesame-open-1234")

    def fetch() -> str:
        """Fails, and says with what."""
        raise RuntimeError(f"401 for https://shop/?key={os.environ['SHOP_API_KEY']}")

    toolbox, request = _visiting(tmp_path, fetch)
    (told,) = await toolbox.results(request, (), said("", ("fetch", "{}")))
    assert told.startswith("error: RuntimeError: 401 for https://shop/?key=")
    assert "sesame" not in told
    assert "sesame" not in str(load_events(tmp_path))


async def test_a_stopped_run_begins_no_call(tmp_path: Path) -> None:
    def check() -> None:
        raise Interrupted("stopped")

    toolbox, request = _visiting(tmp_path, add, check=check)
    with pytest.raises(Interrupted):
        await toolbox.results(request, (), said("", ("add", '{"first": 1}')))
    assert not load_events(tmp_path)


async def test_calls_in_flight_are_counted(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def wait() -> str:
        """Waits."""
        await go.wait()
        return "done"

    toolbox, request = _visiting(tmp_path, wait)
    making = asyncio.create_task(toolbox.results(request, (), said("", ("wait", "{}"))))
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert toolbox.in_flight == 1
    go.set()
    assert await making == ("done",)
    assert toolbox.in_flight == 0


@pytest.mark.slow
def test_a_first_interrupt_lets_calls_of_tools_finish(tmp_path: Path, noted: Path) -> None:
    """SIGINT comes while a tool with effects is at work."""
    slow = Path(f"{noted}.slow")
    slow.touch()
    folder = tmp_path / "run"
    with subprocess.Popen(command(folder), stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 60
        while "fetch" not in (noted.read_text() if noted.exists() else ""):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
    assert run.returncode == 130
    slow.unlink()
    assert CUT_OFF not in [result for step in steps(resume(folder)) for result in step.results]


def test_a_limit_for_an_agent_without_tools_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agents\.writer\.max_calls limits calls of tools"):
        prepare(config("agents.writer.max_calls=3"))


def test_preferences_of_a_team_with_tools_are_refused_before_anything_is_played(
    tmp_path: Path,
) -> None:
    steps = ("recipe.steps=search+distil", "recipe.stages.distil.method=dpo")
    asked = resolve([], [*BASE[:2], "episodes=4", *steps], {})
    with pytest.raises(ConfigError, match=r"agents with tools \(runner\) can't be taught"):
        orchestry.train(asked, tmp_path / "run")
    assert not (tmp_path / "run").exists()
