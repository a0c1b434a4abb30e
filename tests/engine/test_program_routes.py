"""What a program asks for beside chats: lists of models, sizes, old completions, embeddings; and
calls of a team whose models have names of their own. Vendors' clients, real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.store.journal import Answered, Reserved
from orchestry.store.run import Run
from orchestry.task.programs.agent_task import Team
from tests.engine.test_programs import asked, post, turns
from tests.models.conftest import OPENAI_ANSWER
from tests.models.loopback import Server, reply, serving

for package in ("aiohttp", "anthropic", "openai"):
    pytest.importorskip(package)

TASK = """
from orchestry import AgentSpec, AgentTask, Problem


class Routes(AgentTask):
    name = "routes"
    agents = (AgentSpec(role="drafter"), AgentSpec(role="checker"))
    models = {"drafter": "gpt-4o-mini", "checker": "gpt-4o-mini"}

    def problems(self, split):
        return [Problem(id=split, prompt="x", split=split)]

    def play(self, problem, team):
        import openai

        with openai.OpenAI(base_url=team.url, api_key=team.key, max_retries=0) as client:
            said = told(client, team)
        return self.score(quality=1.0, feedback=str(said))


"""
ALL = """
def told(client, team):
    import anthropic

    names = [one.id for one in client.models.list()]
    assert names == ["drafter", "checker", "gpt-4o-mini"], names
    assert client.models.retrieve("openai/gpt-4o-mini").id == "openai/gpt-4o-mini"
    asked = {"model": "openai/drafter", "prompt": "Tea is", "max_tokens": 5, "stop": ["!"]}
    whole = client.completions.create(**asked)
    assert whole.usage.completion_tokens <= 5
    more = {"stream_options": {"include_usage": True}}
    pieces = [*client.completions.create(**asked, stream=True, **more)]
    assert "".join(one.choices[0].text for one in pieces)
    assert pieces[-1].usage.total_tokens > 0
    user = [{"role": "user", "content": "a"}]
    with anthropic.Anthropic(base_url=team.url, api_key=team.key) as claude:
        few = claude.messages.count_tokens(model="drafter", messages=user).input_tokens
        long = [{"role": "user", "content": "word " * 300}]
        many = claude.messages.count_tokens(model="drafter", messages=long).input_tokens
        assert [one.id for one in claude.models.list()] == names
    assert 0 < few < 300 < many < 1500
    head = {"X-Orchestry-Agent": "checker"}
    client.chat.completions.create(model="gpt-4o-mini", messages=user, extra_headers=head)
    system = [{"role": "system", "content": "You are the checker."}]
    client.chat.completions.create(model="gpt-4o-mini", messages=[*system, *user])
    client.responses.create(model="gpt-4o-mini", instructions="A drafter.", input="a")
    one, two, three = client.embeddings.create(model="e", input=["a", "b", "a"]).data
    assert one.embedding == three.embedding != two.embedding
    assert abs(sum(x * x for x in one.embedding) - 1) < 1e-3
    return names
"""


def routes(folder: Path, program: str, *sets: str) -> RunConfig:
    (folder / "tasks" / "routes").mkdir(parents=True)
    (folder / "tasks" / "routes" / "task.py").write_text(TASK + program, encoding="utf-8")
    told = ["task=routes", f"task_path=[{folder / 'tasks'}]", "episodes=1", "search.k_samples=1"]
    off = ["behaviors.enabled=false", "judge.enabled=false", "cache.enabled=false"]
    return resolve([], [*told, *off, *sets], {})


def test_vendors_clients_find_what_they_look_for(tmp_path: Path) -> None:
    run = orchestry.train(routes(tmp_path, ALL, "provider.name=fake"), tmp_path / "run")
    assert not run.episodes[0].nodes[-1].score.tags, run.episodes[0].nodes[-1].score.feedback
    assert Counter(one.agent for one in turns(run)) == {"drafter": 3, "checker": 2}
    first = turns(run)[0]
    assert [one.content for one in first.messages] == ["Tea is"]
    assert embeds(run)


AZURE = """
def told(client, team):
    import httpx
    import openai

    user = [{"role": "user", "content": "a"}]
    for place in (team.url, team.base_url("drafter")):
        who = {"azure_endpoint": place, "api_key": team.key, "api_version": "2024-10-21"}
        with openai.AzureOpenAI(**who, max_retries=0) as azure:
            azure.chat.completions.create(model="drafter", messages=user)
            pieces = azure.chat.completions.create(model="drafter", messages=user, stream=True)
            assert "".join(one.choices[0].delta.content or "" for one in pieces if one.choices)
    with openai.OpenAI(base_url=f"{team.url}/openai/v1/", api_key=team.key) as newer:
        newer.chat.completions.create(model="checker", messages=user)
    path = f"{team.url}/openai/deployments/checker/chat/completions?api-version=2024-10-21"
    for key, status in ((team.key, 200), ("other", 401)):
        found = httpx.post(path, json={"messages": user}, headers={"api-key": key})
        assert found.status_code == status, found.text
    path = f"{team.url}/openai/deployments/nobody/chat/completions"
    found = httpx.post(path, json={"messages": user}, headers={"api-key": team.key})
    assert found.status_code == 404 and "no agent 'nobody'" in found.text, found.text
    return []
"""


def test_azures_clients_name_the_agent_in_their_path(tmp_path: Path) -> None:
    run = orchestry.train(routes(tmp_path, AZURE, "provider.name=fake"), tmp_path / "run")
    assert not run.episodes[0].nodes[-1].score.tags, run.episodes[0].nodes[-1].score.feedback
    assert Counter(one.agent for one in turns(run)) == {"drafter": 4, "checker": 2}


def embeds(run: Run) -> list[Answered]:
    return [one for one in run.events if isinstance(one, Answered) and one.purpose == "embed"]


EMBEDS = """
def told(client, team):
    found = []
    for text in ("a", "a", "b"):
        try:
            data = client.embeddings.create(model="text-embedding-3-small", input=text).data
            found.append(data[0].embedding)
        except openai_errors() as error:
            found.append(error.status_code)
    client.chat.completions.create(model="drafter", messages=[{"role": "user", "content": "a"}])
    return found


def openai_errors():
    import openai

    return openai.APIStatusError
"""
VECTOR = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]}


async def embedded(
    tmp_path: Path, answer: Callable[[dict[str, Any]], bytes], *sets: str
) -> tuple[Run, Server]:
    """A run at a server whose embeddings `answer` makes."""
    held = list[Server]()

    def reaction(number: int) -> bytes:
        if held[0].paths[number].endswith("/embeddings"):
            return answer(held[0].bodies[number])
        return reply(OPENAI_ANSWER)

    async with serving(reaction) as server:
        held.append(server)
        where = ("provider.name=openai", "provider.model=m", f"provider.base_url={server.url}")
        priced = ("prices.m.input=1", "prices.m.output=5", "retry.base_s=0.01")
        config = routes(tmp_path, EMBEDS, *where, *priced, *sets)
        run = await asyncio.to_thread(orchestry.train, config, tmp_path / "run")
    return run, server


async def test_embeddings_are_passed_on_and_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")
    usage = {"usage": {"prompt_tokens": 9, "total_tokens": 9}}
    run, server = await embedded(tmp_path, lambda body: reply({**VECTOR, **usage}))
    feedback = run.episodes[0].nodes[-1].score.feedback
    assert feedback == str([[0.5, 1.0]] * 3)
    sent = [body for body in server.bodies if "input" in body]
    assert [(body["model"], body["input"]) for body in sent] == [
        ("text-embedding-3-small", "a"),
        ("text-embedding-3-small", "b"),
    ]
    keys = {one.key for one in embeds(run)}
    reserved = [one for one in run.events if isinstance(one, Reserved) and one.key in keys]
    assert len(reserved) == 2
    charged = [one.completion.usd for one in embeds(run)]
    assert all(0 < usd <= most.usd for usd, most in zip(charged, reserved, strict=True))


@pytest.mark.parametrize(
    ("body", "status"),
    [({"data": []}, 200), ({"error": {"message": "no such model"}}, 404), ({"data": ["x"]}, 200)],
)
async def test_what_a_server_cannot_embed_its_program_is_told(
    body: dict[str, Any], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")
    sets = ("retry.attempts=1",)
    run, _ = await embedded(tmp_path, lambda _: reply(body, status), *sets)
    assert run.episodes[0].nodes[-1].score.feedback == "[400, 400, 400]"


async def test_the_cap_holds_for_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")
    dear = ("prices.text-embedding-3-small.input=100", "prices.text-embedding-3-small.output=0")
    run, server = await embedded(tmp_path, lambda _: reply(VECTOR), *dear, "budget.usd=0.02")
    assert run.summary.stopped == "budget"
    assert run.summary.cost_usd <= 0.02
    assert sum("input" in body for body in server.bodies) == 1


def test_a_model_without_a_price_is_told_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed-here")
    program = EMBEDS.replace("text-embedding-3-small", "no-such-model-of-anyone")
    sets = ("provider.name=openai", "provider.model=m", "provider.base_url=http://127.0.0.1:1")
    more = ("prices.m.input=1", "prices.m.output=1", "retry.patience_s=0.1", "retry.base_s=0.01")
    run = orchestry.train(routes(tmp_path, program, *sets, *more), tmp_path / "run")
    assert run.summary.stopped != "done"  # nobody answers its chat
    why = [one.completion.failed for one in embeds(run)]
    assert len(why) == 2
    assert all("no-such-model-of-anyone" in text and "--set prices" in text for text in why)


INPUTS: list[Any] = [None, "", [], [[]], [1, "a"], 5]
PROMPTS: list[Any] = [None, [], ["a", "b"], [1], {"a": 1}]
WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("embeddings", {"model": "e", "input": one}) for one in INPUTS),
    ("embeddings", {"input": "a"}),
    ("embeddings", {"model": ["e"], "input": "a"}),
    ("embeddings", {"model": "e", "input": "a", "service_tier": "priority"}),
    ("embeddings", {"model": "e", "input": "a", "dimensions": 10**30}),
    ("embeddings", {"model": "e", "input": "a", "encoding_format": {}}),
    ("embeddings", {"model": "e", "input": "a"}),
    *(("completions", {"prompt": one}) for one in PROMPTS),
    ("completions", {"prompt": "a", "n": 2}),
    ("completions", {"prompt": "a", "best_of": 3}),
    ("completions", {"prompt": "a", "echo": True}),
    ("completions", {"prompt": "a", "max_tokens": 2.5}),
    ("messages/count_tokens", {"messages": []}),
    ("messages/count_tokens", {"messages": 5}),
    ("messages/count_tokens", {"tools": [{"name": 5}]}),
]


def test_wrong_calls_of_these_cost_one_line() -> None:
    def program(task: Any, team: Team) -> None:
        url = team.base_url("writer")
        for place, body in WRONG:
            found = post(f"{url}/{place}", team, **{"messages": [], **body})
            assert found.status_code == 400, (place, body, found.text)
            why = found.json()["error"]["message"]
            assert 10 < len(why) < 400, why
            assert "\n" not in why
        head = {"Authorization": f"Bearer {team.key}", "X-Orchestry-Agent": "critic"}
        codes = [
            httpx.get(f"{team.url}/{path}", headers=headers).status_code
            for path, headers in (
                ("models", {}),
                ("models", head),
                ("models/openai/writer", head | {"X-Orchestry-Agent": ""}),
                ("models/reader", head | {"X-Orchestry-Agent": ""}),
            )
        ]
        assert codes == [401, 200, 200, 404]
        two = httpx.post(f"{url}/chat/completions", headers=head, content=json.dumps({}))
        assert two.status_code == 400
        assert "the header" in two.json()["error"]["message"]

    asked(program)
