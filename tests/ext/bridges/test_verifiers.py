"""verifiers' environments as tasks, and our tasks as its environments, at a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

vf = pytest.importorskip("verifiers.v1")

import orchestry
from orchestry import AgentSpec, Limits, Tools
from orchestry.cli import main
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import TASK_ERROR
from orchestry.ext.bridges.verifiers import VerifiersTask, environment
from orchestry.sandbox import open_sandbox
from orchestry.store.run import Run
from orchestry.task.guard import Play
from orchestry.task.registry import load_task
from tests.backends.letters import EVERY, GROUP, adapters, learned, settings
from tests.backends.local.tiny import tiny_folder
from tests.models.conftest import OPENAI_ANSWER
from tests.models.loopback import Server, reply, serving

USAGE = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
FIXTURES = Path(__file__).parents[2] / "fixtures" / "verifiers"
TASK = """
from orchestry import AgentSpec
from orchestry.ext.bridges.verifiers import VerifiersTask

class Played(VerifiersTask):
    name = "played"
    agents = tuple(AgentSpec(role=role) for role in {roles})
    environment = {environment}
    {more}
"""
Say = Callable[[dict[str, Any]], Any]
"""From a call's body to a text, or to a whole message."""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FIXTURES))
    monkeypatch.setenv("PYTHONPATH", str(FIXTURES))  # of a tool server's process
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")


def told(body: Mapping[str, Any]) -> str:
    """All that a call says."""
    return "\n".join(str(message["content"]) for message in body["messages"])


def answered(say: Say, server: Server, number: int) -> bytes:
    said = say(server.bodies[number])
    message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return reply({**OPENAI_ANSWER, "choices": [choice], "usage": USAGE})


async def played(say: Say, folder: Path, *sets: str, **task: Any) -> tuple[Run, Server]:
    """A run of backend api, at a server that says so."""
    more = "\n    ".join(f"{name} = {value!r}" for name, value in task.pop("more", {}).items())
    (folder / "played").mkdir(parents=True)
    (folder / "played" / "task.py").write_text(TASK.format(**task, more=more))
    held = list[Server]()
    async with serving(lambda number: answered(say, held[0], number)) as server:
        held.append(server)
        where = ("provider.name=openai", "provider.model=m", f"provider.base_url={server.url}")
        price = ("prices.m.input=1", "prices.m.output=5", "behaviors.enabled=false")
        known = ("task=played", f"task_path=[{folder}]", "episodes=2", "search.k_samples=2")
        config = resolve([], [*known, *where, *price, "cache.enabled=false", *sets], {})
        run = await asyncio.to_thread(orchestry.train, config, folder / "run")
    return run, server


def leaves(run: Run) -> list[Any]:
    return [leaf for one in run.episodes for leaf in one.leaves()]


async def test_a_taskset_of_one_agent(tmp_path: Path) -> None:
    """Rewards are those of the environment: half right, then right."""
    turns = iter(range(100))

    def say(body: dict[str, Any]) -> str:
        word = str(body["messages"][-1]["content"])
        return word[::-1] if next(turns) % 2 else word[::-1][: len(word) // 2]

    run, server = await played(say, tmp_path, roles=["agent"], environment="'backwards'")
    assert [message["role"] for message in server.bodies[0]["messages"]] == ["system", "user"]
    assert told(server.bodies[0]).startswith("Spell it backwards.\ntea")
    ends = [leaf.score for leaf in leaves(run)]
    assert not [tag for score in ends for tag in score.tags]
    assert sorted({score.total == 1.0 for score in ends}) == [False, True]
    for score in ends:
        assert score.returns == (score.total,)
        assert "agent: close 0." in score.feedback
        assert "letters" in score.feedback
    assert not [name for name in os.environ if name.startswith("ORCHESTRY_API_KEY")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")  # of verifiers
async def test_tools_of_an_environment_are_called(tmp_path: Path) -> None:
    """Its tool server is a process of its own, and answers the agent's calls."""

    def say(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return last["content"]
        (tool,) = body["tools"]
        asked = {
            "name": tool["function"]["name"],
            "arguments": json.dumps({"word": last["content"]}),
        }
        call = {"id": "c", "type": "function", "function": asked}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    settings = {"taskset": {"id": "backwards", "task": {"tool": True}}}
    few = ("episodes=1", "search.k_samples=1")
    run, server = await played(say, tmp_path, *few, roles=["agent"], environment=settings)
    assert [leaf.score.total for leaf in leaves(run)] == [1.0]
    assert len(server.bodies) == 2
    assert server.bodies[0]["tools"][0]["function"]["description"] == "Spells a word backwards."


@pytest.mark.slow
def test_weights_learn_what_an_environment_rewards(tmp_path: Path, one_thread: None) -> None:
    """Its rewards are what backend local's updates are made of."""
    model = str(tiny_folder(tmp_path / "tiny"))
    (tmp_path / "played").mkdir()
    source = TASK.format(roles=["agent"], environment="'backwards'", more="")
    (tmp_path / "played" / "task.py").write_text(source)
    run = orchestry.train(resolve([], settings(model, tmp_path, "task=played")), tmp_path / "run")
    assert len(leaves(run)) == 2 * EVERY * GROUP
    assert len({leaf.score.total for leaf in leaves(run)}) > 1
    assert [event.state["samples"] > 0 for event in learned(run)] == [True, True]
    assert len(set(adapters(run.folder).values())) == 2


async def test_agents_against_each_other(tmp_path: Path) -> None:
    """Each asks for itself, and one of them earns."""

    def say(body: dict[str, Any]) -> str:
        if told(body).startswith("You sell"):
            return "12" if "Name price 2." in told(body) else "30"
        return "no" if body["messages"][-1]["content"] == "It costs 30." else "yes"

    more = {"low": -10.0, "high": 10.0, "earner": "seller"}
    where = "'haggle'"
    run, _ = await played(say, tmp_path, roles=["seller", "buyer"], environment=where, more=more)
    for leaf in leaves(run):
        gain, loss = leaf.score.returns
        assert gain == -loss
        assert leaf.score.total == pytest.approx((gain + 10) / 20)
        said = [f"buyer: gain {loss:g}", f"seller: gain {gain:g}"]
        assert sorted(leaf.score.feedback.splitlines()) == said
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    by_role = {turn.agent: turn.messages[0].content[:8] for turn in turns}
    assert by_role == {"seller": "You sell", "buyer": "You buy."}
    assert len(turns) == 4 * len(leaves(run))


async def test_an_environment_that_comes_with_verifiers(tmp_path: Path) -> None:
    """A simulated user, whom verifiers would not train, so its reward does not count."""

    def say(body: dict[str, Any]) -> str:
        if told(body).startswith("Spell"):
            return str(body["messages"][-1]["content"])[::-1]
        words = [m["content"] for m in body["messages"] if m["role"] == "user"]
        scenario = str(body["messages"][0]["content"])
        word = scenario.split("do for you:")[1].split()[0]
        return word if len(words) == 1 else "###DONE###"

    settings = {"id": "user-sim", "taskset": {"id": "backwards"}}
    roles = ["assistant", "user"]
    run, server = await played(say, tmp_path, roles=roles, environment=settings)
    assert [leaf.score.returns for leaf in leaves(run)] == [(1.0, 0.0)] * 4
    assert [leaf.score.total for leaf in leaves(run)] == [1.0] * 4
    assert "user_turns 2" in leaves(run)[0].score.feedback
    assert len(server.bodies) == 3 * 4


async def test_what_fails_there_scores_nothing(tmp_path: Path) -> None:
    """The seller names no number once."""
    calls = iter(range(100))

    def say(body: dict[str, Any]) -> str:
        if told(body).startswith("You buy"):
            return "yes"
        return "7" if next(calls) else "seven"

    roles = ["seller", "buyer"]
    run, _ = await played(say, tmp_path, roles=roles, environment="'haggle'")
    faults = [leaf.score for leaf in leaves(run) if TASK_ERROR in leaf.score.tags]
    assert len(faults) == 1
    assert "invalid literal for int()" in faults[0].feedback


async def test_an_environment_that_hangs_is_given_up(tmp_path: Path) -> None:
    settings = {"taskset": {"id": "haggle"}, "hangs": True}
    roles, more = ["seller", "buyer"], {"timeout_s": 1.0}
    with pytest.raises(TaskError, match="made no call and did not end for 1 s"):
        await played(lambda body: "7", tmp_path, roles=roles, environment=settings, more=more)


@pytest.mark.parametrize(
    ("given", "roles", "text"),
    [
        (
            "haggle",
            ("seller",),
            "its agents are seller, and those of the environment seller, buyer",
        ),
        ("nowhere", ("agent",), "verifiers can't make its environment .* 'nowhere' not found"),
        ({"taskset": {"id": "backwards", "size": 3}}, ("agent",), "can't make its environment"),
        ({"taskset": {"id": "backwards", "endless": True}}, ("agent",), "no end: set limit"),
    ],
)
def test_what_can_not_be_played_is_an_error(given: Any, roles: Any, text: str) -> None:
    class Wrong(VerifiersTask):
        name = "wrong"
        agents = tuple(AgentSpec(role=role) for role in roles)
        environment = given

    with pytest.raises(TaskError, match=text):
        Wrong().problems("train")


def test_who_earns_is_an_agent() -> None:
    class Wrong(VerifiersTask):
        name = "wrong"
        agents = (AgentSpec(role="seller"), AgentSpec(role="buyer"))
        environment = "haggle"
        earner = "saler"

    with pytest.raises(TaskError, match=r"unknown earner of task wrong 'saler'.* 'seller'"):
        Wrong().problems("train")


def test_its_tasks_are_in_splits_that_stay() -> None:
    class Words(VerifiersTask):
        name = "words"
        agents = (AgentSpec(role="agent"),)
        environment: ClassVar[Any] = "backwards"

    class Endless(Words):
        environment: ClassVar[Any] = {"taskset": {"id": "backwards", "endless": True}}
        limit = 30

    def ids(task: VerifiersTask) -> list[set[str]]:
        return [{one.id for one in task.problems(split)} for split in ("train", "dev", "test")]

    few, many = ids(Words()), ids(Endless())
    assert [len(names) for names in few] != [20, 0, 0]
    assert sum(map(len, few)) == 20
    assert all(names <= more for names, more in zip(few, many, strict=True))
    assert sum(map(len, many)) == 30


def worse(task: Any, problem: Any) -> list[dict[str, str]]:
    """Answers for all agents, of several rewards."""
    return [{**dict.fromkeys(one, ""), **one} for one in task.graded(problem)][:3]


async def earned(task: Any, problem: Any, answers: Mapping[str, str]) -> tuple[Any, list[str]]:
    """Our own score of these answers, and who moves."""
    play = Play(task, problem, task.reset(problem, 0), answers.__getitem__)
    moves = [agent for said in play for agent in said]
    async with open_sandbox(Limits()) as sandbox:
        return await task.evaluate(play.state, Tools(sandbox=sandbox)), moves


async def by_verifiers(module: str, answers: Mapping[str, str], problem: str) -> Any:
    """An episode that verifiers' own runner plays, at a server that gives these answers."""
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    task: Any = load_task(module.removeprefix("our_"))
    prompts = {spec.role: spec.system_prompt for spec in task.agents}

    def say(body: dict[str, Any]) -> str:
        system = body["messages"][0]["content"]
        return answers[next(role for role, prompt in prompts.items() if system.startswith(prompt))]

    held = list[Server]()
    async with serving(lambda number: answered(say, held[0], number)) as server:
        held.append(server)
        asked = {
            "env": {"taskset": {"id": module}},
            "select": {"include": {"ids": [problem]}},
            "client": {"base_url": f"{server.url}/v1", "api_key_var": "OPENAI_API_KEY"},
            "model": "m",
            "push": False,
            "rich": None,
        }
        (episode,) = await run_eval(EvalConfig.model_validate(asked))
    return episode


@pytest.mark.parametrize("name", ["tldr", "code_review"])
async def test_our_tasks_earn_the_same_at_verifiers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their runner plays our roles, and gives the rewards that we give for the same answers."""
    monkeypatch.chdir(tmp_path)
    task: Any = load_task(name)
    problem, totals = task.problems("train")[0], set[float]()
    for answers in worse(task, problem):
        score, moves = await earned(task, problem, answers)
        episode = await by_verifiers(f"our_{name}", answers, problem.id)
        assert episode.ok, episode.errors
        assert sorted(trace.agent.name for trace in episode.traces) == sorted(moves)
        for trace in episode.traces:
            assert trace.reward == score.total
            assert trace.metrics == {part.name: part.value for part in score.parts}
            assert trace.info["feedback"] == score.feedback
        totals.add(score.total)
    assert len(totals) > 1


async def test_our_task_goes_there_and_back(tmp_path: Path) -> None:
    """As a task made of the environment that it was made into."""
    task: Any = load_task("tldr")
    known = {one.id: one for one in task.problems("train")}
    first = task.agents[0].system_prompt

    def say(body: dict[str, Any]) -> str:
        system, post = (str(message["content"]) for message in body["messages"])
        gold = next((task.gold(one) for one in known.values() if one.prompt in post), None)
        return gold["concise" if system.startswith(first) else "detailed"] if gold else post[:200]

    roles, few = ["concise", "detailed"], ("episodes=8", "search.k_samples=1")
    run, server = await played(say, tmp_path, *few, roles=roles, environment="'our_tldr'")
    totals = [leaf.score.total for leaf in leaves(run)]
    for one, total in zip(run.episodes, totals, strict=True):
        gold = task.gold(known[one.problem])
        assert (total == 1.0) == (gold is not None)
    assert len(set(totals)) > 1
    assert len(server.bodies) == 2 * 8


def test_a_task_with_tools_is_not_exported() -> None:
    with pytest.raises(ConfigError, match="repair can't be played by verifiers, since coder has"):
        environment("repair")


@pytest.mark.slow
async def test_their_command_plays_our_task(tmp_path: Path) -> None:
    """As docs/bridges.md says it."""
    async with serving(reply({**OPENAI_ANSWER, "usage": USAGE})) as server:
        command = [
            str(Path(sys.executable).with_name("vf-eval")),
            *("our_tldr", "-m", "m", "-n", "2", "--no-push", "--no-rich"),
            *("--client.base-url", f"{server.url}/v1", "--client.api-key-var", "OPENAI_API_KEY"),
            *("--env.taskset.split", "test"),
        ]
        ran = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True
        )
    assert ran.returncode == 0, ran.stderr[-2000:]
    (file,) = [*tmp_path.glob("outputs/*/traces.jsonl")]  # noqa: ASYNC240
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    assert [episode["ok"] for episode in episodes] == [True, True]
    assert len(server.bodies) == 4


def test_the_examples_are_what_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of the page, with another game of two agents, and the module of three lines."""
    text = (FIXTURES.parents[2] / "docs" / "bridges.md").read_text(encoding="utf-8")
    examples = dict(re.findall(r"<!-- example: (.+?) -->\n```\w+\n(.*?)```", text, re.DOTALL))
    assert (FIXTURES / "our_tldr.py").read_text().endswith(examples["our_tldr.py"])
    assert examples["vf-eval"].split()[:2] == ["vf-eval", "our_tldr"]
    code = examples["tasks/kuhn/task.py"]
    for ours, theirs in {
        "kuhn-poker": "haggle",
        "player0": "seller",
        "player1": "buyer",
        "-2.0, 2.0": "-10.0, 10.0",
    }.items():
        code = code.replace(ours, theirs)
    (tmp_path / "tasks" / "kuhn").mkdir(parents=True)
    (tmp_path / "tasks" / "kuhn" / "task.py").write_text(code)
    (tmp_path / "script.jsonl").write_text(
        '{"agent": "seller", "text": "6"}\n{"agent": "buyer", "text": "yes"}\n'
    )
    monkeypatch.chdir(tmp_path)
    fake = ["--provider", "fake", "--set", "provider.fake.script=script.jsonl"]
    with pytest.raises(SystemExit) as exited:
        main([*shlex.split(examples["verifiers commands"])[1:], *fake])
    assert exited.value.code == 0
    [folder] = (tmp_path / "runs").iterdir()
    assert all(abs(leaf.score.returns[0]) < 10 for leaf in leaves(orchestry.load_run(folder)))
