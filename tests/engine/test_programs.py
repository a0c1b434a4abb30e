"""Agents in programs of a user's own: whole runs, both vendors' clients, kills, and what goes
wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

import orchestry
from orchestry.cli import main
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import TASK_ERROR, Turn
from orchestry.engine.estimate import estimate
from orchestry.engine.run import prepare, resume
from orchestry.store.journal import Answered
from orchestry.store.run import Run

pytest.importorskip("aiohttp")
TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
BASE = ("task=duet", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=4")


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


def test_chains_of_one_problem_differ_and_runs_repeat(tmp_path: Path) -> None:
    one, other = (orchestry.train(config(), tmp_path / name) for name in "ab")
    texts = [t.completion.text for t in turns(one) if t.messages[-1].content == "Write of 0."]
    assert len(set(texts)) == len(texts) > 1
    assert [t.completion.text for t in turns(one)] == [t.completion.text for t in turns(other)]


@pytest.mark.parametrize("way", ["together", "claude", "stream", "claude_stream", "leaves"])
def test_clients_of_both_vendors_are_answered(way: str, tmp_path: Path) -> None:
    run = orchestry.train(config(way), tmp_path / "run")
    assert not tags(run)
    assert all(one.reward > 0 for one in run.episodes)


@pytest.mark.parametrize("way", ["tools", "claude_tools"])
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


def test_what_was_learned_stands_in_the_systems_prompt(tmp_path: Path) -> None:
    goal = "agents.writer.system_prompt=Count to ten first."
    run = orchestry.train(config("plain", goal), tmp_path / "run")
    writer, critic = (
        next(t for t in turns(run) if t.agent == role) for role in ("writer", "critic")
    )
    assert writer.messages[0].content == "You are writer.\n\nCount to ten first."
    assert critic.messages[0].content == "You are critic."


def test_a_resume_asks_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies by SIGKILL, in the middle of episodes."""
    whole = orchestry.train(config("plain", "search.concurrency=1"), tmp_path / "whole")
    folder, noted = tmp_path / "run", tmp_path / "noted"
    sets = [*BASE, "search.concurrency=1", "provider.fake.latency_s=0.05"]
    command = [sys.executable, "-m", "orchestry", "run", "--run-dir", str(folder), "--trust"]
    told = [word for one in sets for word in ("--set", one)]
    with subprocess.Popen([*command, *told], env={**os.environ, "DUET": str(noted)}) as process:
        while process.poll() is None and _answers(folder) < whole.summary.calls // 2:
            pass
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


def test_a_program_that_hangs_is_given_up(tmp_path: Path) -> None:
    run = orchestry.train(config("hangs", "options.patience=2.5"), tmp_path / "run")
    feedback = [n.score.feedback for one in run.episodes for n in one.nodes]
    assert any("made no call and did not end for 2.5 s" in text for text in feedback)
    assert tags(run)[TASK_ERROR] == run.config["search"]["k_samples"]


def test_a_program_that_always_fails_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"play gave a str on problem .*: return a Score"):
        orchestry.train(config("wrong"), tmp_path / "run")
    with pytest.raises(TaskError, match="this rollout has made its 4 calls"):
        orchestry.train(config("many"), tmp_path / "many")


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
    monkeypatch.setenv("DUET", str(tmp_path / "noted"))
    found = estimate(config())
    assert found.calls == 4 * 4 * 4  # problems, rollouts, max_turns
    assert not (tmp_path / "noted").exists()


def test_the_cap_holds(tmp_path: Path) -> None:
    prices = ("prices.fake-1.input=1000", "prices.fake-1.output=1000", "budget.usd=2")
    run = orchestry.train(config("plain", *prices), tmp_path / "run")
    assert run.summary.stopped == "budget"
    assert run.summary.cost_usd <= 2


def test_the_address_answers_only_who_it_is_for(tmp_path: Path) -> None:
    """Each is refused with its reason, in the client's own form."""
    from orchestry.task.programs.host import Host
    from orchestry.task.registry import load_task

    task: Any = load_task("duet", [TASKS])
    seen: dict[str, Any] = {}

    def play(problem: Any, team: Any) -> Any:
        url = team.base_url("writer")

        def post(address: str, key: str = team.key, **body: Any) -> httpx.Response:
            told = {"messages": [{"role": "user", "content": "a"}], **body}
            return httpx.post(address, json=told, headers={"Authorization": f"Bearer {key}"})

        chat = f"{url}/chat/completions"
        picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
        seen["key"] = post(chat, key="another")
        seen["role"] = post(chat.replace("writer", "reader"))
        seen["rollout"] = post(chat.replace("/rollout/", "/rollout/9"))
        seen["n"] = post(chat, n=2)
        seen["picture"] = post(chat, messages=picture)
        seen["nothing"] = post(chat, messages=[])
        seen["forced"] = post(f"{url}/messages", tool_choice={"type": "any"})
        seen["text"] = httpx.post(chat, content="{", headers={"x-api-key": team.key})
        with pytest.raises(TaskError, match="the team has no agent 'reader'"):
            team.base_url("reader")
        return task.score(quality=1.0)

    task.play = play

    async def run() -> None:
        async with Host(task).open() as host:
            with host.rollouts() as rollouts:
                problem = task.problems("train")[0]
                state = await rollouts.start(task.reset(problem, 0), 0)
                assert state.score is not None
                assert state.score.total == 1.0

    import asyncio

    asyncio.run(run())
    status = {name: answer.status_code for name, answer in seen.items()}
    assert status == {
        "key": 401,
        "role": 404,
        "rollout": 410,
        **dict.fromkeys(("n", "picture", "nothing", "forced", "text"), 400),
    }
    assert "api_key=team.key" in seen["key"].json()["error"]["message"]
    assert "only writer, critic" in seen["role"].json()["error"]["message"]
    assert "send text alone" in seen["picture"].json()["error"]["message"]
    assert seen["forced"].json()["type"] == "error"


# --- a program as a command ----------------------------------------------------------------------

PROGRAM = """
import json, os, sys, urllib.request
problem = json.loads(os.environ["ORCHESTRY_PROBLEM"])

def ask(url, text, **body):
    told = {"messages": [{"role": "user", "content": text}], **body}
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    asked = urllib.request.Request(url + "/chat/completions", json.dumps(told).encode(), head)
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

draft = ask(os.environ["OPENAI_BASE_URL"], problem["prompt"], model="writer")
final = ask(os.environ["ORCHESTRY_URL_CRITIC"], draft)
reward = {"reward": final.count("e") / max(1, len(final)), "tags": ["said"]}
END
"""


def attached(folder: Path, end: str, **more: str) -> RunConfig:
    """A run of a command whose last lines are `end`."""
    (folder / "app.py").write_text(PROGRAM.replace("END", end), encoding="utf-8")
    lines = [f'{{"id": "p{n}", "prompt": "Write of {n}."}}' for n in range(2)]
    (folder / "problems.jsonl").write_text("\n".join(lines), encoding="utf-8")
    given = ["--problems", str(folder / "problems.jsonl"), "--agents", "writer,critic"]
    command = [sys.executable, str(folder / "app.py")]
    with pytest.raises(SystemExit) as exited:
        main(["attach", "app", "--dir", str(folder / "tasks"), *given, "--", *command])
    assert exited.value.code == 0
    file = folder / "tasks" / "app" / "task.py"
    for name, value in more.items():
        file.write_text(re.sub(rf"{name} = \S+", f"{name} = {value}", file.read_text()))
    sets = ["task=app", f"task_path=[{folder / 'tasks'}]", "provider.name=fake", "episodes=2"]
    return resolve([], [*sets, "search.k_samples=2"], {})


@pytest.mark.parametrize(
    "end",
    [
        "print('a line'); print(json.dumps(reward))",
        "json.dump(reward, open(os.environ['ORCHESTRY_REWARD'], 'w')); print('bye')",
    ],
)
def test_a_command_is_a_rollout(end: str, tmp_path: Path) -> None:
    run = orchestry.train(attached(tmp_path, end), tmp_path / "run")
    assert Counter(turn.agent for turn in turns(run)) == {"writer": 4, "critic": 4}
    assert tags(run) == {"said": 4}
    assert all(0 < one.reward < 1 for one in run.episodes)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ("print(reward['reward'] > 2)", "the program said no reward on problem .*'False'"),
        ("sys.exit('out of tea')", "ended with 1 on problem p0: out of tea"),
        ("print(json.dumps({'speed': 1}))", "'speed'"),
    ],
)
def test_a_command_without_a_reward_fails(end: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=text):
        orchestry.train(attached(tmp_path, end), tmp_path / "run")


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    end = (
        "import subprocess, time; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(note)!r}, 'a').write(f'{{os.getpid()}} {{child.pid}}\\n'); time.sleep(60)"
    )
    with pytest.raises(TaskError, match="did not end for 2 s on problem"):
        orchestry.train(attached(tmp_path, end, timeout_s="2.0"), tmp_path / "run")
    pids = [int(pid) for pid in note.read_text().split()]
    assert pids
    deadline = time.monotonic() + 10
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_alive, pids))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
