"""Servers that want requests otherwise: told by the settings, or found by their refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain, combinations, pairwise
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.config import ProviderConfig, RunConfig, resolve
from orchestry.core.errors import ConfigError, ProviderError
from orchestry.core.tools import ANY, ToolSpec
from orchestry.core.types import Provider
from orchestry.engine.run import prepare
from orchestry.models.dialect import Dialect, without_system
from orchestry.models.names import named
from orchestry.models.providers import open_provider
from orchestry.models.request_key import request_key
from tests.models.conftest import ANTHROPIC_ANSWER, KEY, OPENAI_ANSWER, request
from tests.models.loopback import Server, events, reply, serving
from tests.models.test_anthropic import START

HELD = "hush-0123456789"
ENVIRON = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY, "MY_KEY": HELD}
FIELDS = ("max_tokens", "temperature", "seed")
WORDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "openai": lambda name: {
        "error": {"message": f"Unsupported parameter: '{name}' is not supported with this model."}
    },
    "default": lambda name: {
        "error": {"message": f"'{name}' does not support 0.8. Only the default (1) is supported."}
    },
    "fastapi": lambda name: {
        "detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs ..."}]
    },
    "go": lambda name: {"error": f'json: unknown field "{name}"'},
}
NO_SYSTEM = (
    "System role not supported",
    "Developer instruction is not enabled for models/gemma-3-4b-it",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "'messages[0].role' does not support 'system' with this model.",
    "'system' is not one of ['user', 'assistant'] - 'messages.0.role'",
    "Invalid role: system",
)


def opened(url: str, name: str = "openai", **fields: Any) -> Any:
    raw = {"name": name, "model": "m", "base_url": url, "timeout_s": 5.0, **fields}
    return open_provider(ProviderConfig.model_validate(raw), 0, ENVIRON)


def strict(bodies: list[dict[str, Any]], refused: tuple[str, ...], words: str) -> Any:
    """A server that knows none of these fields."""

    def answer(number: int) -> bytes:
        for name in refused:
            if name in bodies[number]:
                return reply(WORDS[words](name), 400)
        return reply(OPENAI_ANSWER)

    return answer


SUBSETS = [*chain.from_iterable(combinations(FIELDS, size) for size in range(4))]


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("refused", SUBSETS, ids="+".join)
async def test_a_refused_field_is_left_out_or_renamed_from_then_on(
    refused: tuple[str, ...], words: str
) -> None:
    said, bodies = list[str](), list[dict[str, Any]]()
    async with serving(lambda number: strict(bodies, refused, words)(number)) as server:
        server.bodies = bodies
        async with opened(server.url) as provider:
            provider.warn = said.append
            for index in range(2):
                assert (await provider.complete(request(sample_index=index))).text == "Hello"
    assert len(bodies) == 2 + len(refused)
    assert not {*refused} & {*bodies[-1]}
    assert bodies[-1].get("max_tokens", bodies[-1].get("max_completion_tokens")) == 16
    assert len(said) == len(refused)
    for line in said:  # each names a setting that says the same
        key, value = re.findall(r"\((provider\.\S+)=(\S+)\)", line)[0]
        provider_of = resolve(sets=[f"{key}={value}", "provider.name=openai"]).provider
        assert Dialect.of(provider_of) != Dialect()


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize("words", NO_SYSTEM)
async def test_a_server_without_a_system_role_is_asked_without_it(words: str, status: int) -> None:
    def answer(number: int) -> bytes:
        if server.bodies[number]["messages"][0]["role"] == "system":
            return reply({"error": {"message": words, "code": status}}, status)
        return reply(OPENAI_ANSWER)

    said = list[str]()
    async with serving(answer) as server, opened(server.url) as provider:
        provider.warn = said.append
        await provider.complete(request())
        await provider.complete(request())
    assert [len(body["messages"]) for body in server.bodies] == [2, 1, 1]
    assert server.bodies[-1]["messages"] == [{"role": "user", "content": "Be brief\n\nSay hi"}]
    assert len(said) == 1
    assert "(provider.system=user)" in said[0]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("The system is not available", 503),
        ("System is currently unavailable", 500),
        ("upstream system error, can't continue", 502),
        ("the system role service is not available", 529),
    ],
)
async def test_a_fault_that_may_be_billed_is_asked_again_only_by_another_reservation(
    words: str, status: int
) -> None:
    """Each attempt is paid for by its own."""

    def answer(number: int) -> bytes:
        return reply(OPENAI_ANSWER) if number else reply({"error": {"message": words}}, status)

    async with serving(answer) as server, opened(server.url) as provider:
        with pytest.raises(ProviderError, match=str(status)) as info:
            await provider.complete(request())
    assert info.value.billed
    assert len(server.bodies) == 1


async def test_what_does_not_help_is_not_kept() -> None:
    def answer(number: int) -> bytes:
        return reply({"error": "the seed is not supported, nor anything else"}, 400)

    said = list[str]()
    async with serving(answer) as server, opened(server.url) as provider:
        provider.warn = said.append
        for _ in range(2):
            with pytest.raises(ProviderError, match=r"provider\.extra_body\.NAME=null"):
                await provider.complete(request())
    assert ["seed" in body for body in server.bodies] == [True, False, True, False]
    assert not said


@given(st.lists(st.sampled_from(["system", "user", "assistant"]), min_size=1, max_size=8))
def test_a_chat_without_system_says_all_in_turns(roles: list[str]) -> None:
    chat = [{"role": role, "content": f"text {place}"} for place, role in enumerate(roles)]
    found = without_system(chat)
    assert all(one["role"] != other["role"] for one, other in pairwise(found))
    assert "system" not in {one["role"] for one in found}
    assert "\n\n".join(m["content"] for m in found) == "\n\n".join(m["content"] for m in chat)
    assert without_system(found) == found


# --- Claude's thoughts ----------------------------------------------------------------------------

ADD = ToolSpec(name="add", description="Adds.", parameters={"type": "object"})
THOUGHTS = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


async def test_claude_thinks_within_an_answers_limit() -> None:
    said = list[str]()
    async with serving(reply(ANTHROPIC_ANSWER)) as server:
        provider = opened(server.url, "anthropic", extra_body=THOUGHTS)
        provider.warn = said.append
        async with provider:
            for most in (2001, 2000, 16):
                await provider.complete(request(max_tokens=most))
                await provider.complete(request(max_tokens=most), started=lambda: None)
    assert [body.get("thinking") for body in server.bodies] == [
        *[THOUGHTS["thinking"]] * 2,
        *[None] * 4,
    ]
    assert len(said) == 1
    assert "thinking.budget_tokens=2000" in said[0]
    assert "temperature" not in server.bodies[0]


def test_thoughts_need_room_in_the_runs_answers() -> None:
    def made(most: int, **extra: Any) -> RunConfig:
        raw = {"provider": {"extra_body": extra or THOUGHTS}, "sampling": {"max_tokens": most}}
        return RunConfig.model_validate(raw)

    assert made(2001).provider.extra_body == THOUGHTS
    with pytest.raises(
        ConfigError, match=r"budget_tokens is 2000.*limit of sampling\.max_tokens.* 2000"
    ):
        made(2000)
    roomy = {"provider": {"extra_body": THOUGHTS}, "agents": {"helper": {"max_tokens": 4096}}}
    assert RunConfig.model_validate(roomy).sampling.max_tokens < 2000
    for extra in ({"budget_tokens": 9}, {"thinking": {"budget_tokens": "9"}}, {"a": THOUGHTS}):
        with pytest.raises(ConfigError, match="leave budget_tokens out"):
            made(4000, **extra)
    with pytest.raises(ConfigError, match="is for Claude"):
        opened("http://127.0.0.1:1/v1", extra_body=THOUGHTS)


@pytest.mark.parametrize("streamed", [False, True])
async def test_claude_that_thinks_is_not_told_which_tool_to_call(streamed: bool) -> None:
    """With thinking on, Claude refuses to be told one, but takes that none is to be called."""
    words = "Thinking may not be enabled when tool_choice forces tool use."

    def answer(number: int) -> bytes:
        forced = server.bodies[number].get("tool_choice", {}).get("type") in ("any", "tool")
        told = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
        return reply(told, 400) if forced else reply(ANTHROPIC_ANSWER)

    tools, said = (ADD, ADD.model_copy(update={"name": "mul"})), list[str]()
    start = {"started": lambda: None} if streamed else {}
    async with serving(answer) as server:
        provider = opened(server.url, "anthropic", extra_body={"thinking": {"type": "adaptive"}})
        provider.warn = said.append
        async with provider:
            for fields in ({"must_call": ANY}, {"must_call": "mul"}, {"must_answer": True}):
                await provider.complete(request(tools=tools, **fields), **start)
    offered = [[tool["name"] for tool in body["tools"]] for body in server.bodies]
    assert offered == [["add", "mul"], ["add", "mul"], ["mul"], ["add", "mul"]]
    choices = [body.get("tool_choice") for body in server.bodies]
    assert choices == [{"type": "any"}, None, None, {"type": "none"}]
    assert len(said) == 1
    assert "(provider.extra_body.tool_choice=null)" in said[0]


@pytest.mark.parametrize(("begun", "asked"), [(False, 2), (True, 1)])
async def test_what_is_refused_in_any_form_or_was_billed_is_not_asked_again(
    begun: bool, asked: int
) -> None:
    told = {"type": "error", "error": {"type": "invalid_request_error", "message": "tool_choice"}}
    raw = events(START, told) if begun else reply(told, 400)
    async with serving(raw) as server, opened(server.url, "anthropic") as provider:
        ask = request(tools=(ADD,), must_answer=True)
        with pytest.raises(ProviderError, match="400: tool_choice") as raised:
            await provider.complete(ask, started=lambda: None)
    assert raised.value.billed == begun
    assert len(server.bodies) == asked


# --- by the settings ------------------------------------------------------------------------------


async def _body(server: Server, provider: Any, **fields: Any) -> dict[str, Any]:
    async with provider:
        await provider.complete(request(), **fields)
    return server.bodies[-1]


async def test_the_settings_are_followed_from_the_first_request_on() -> None:
    async with serving(reply(OPENAI_ANSWER)) as server:
        extra = {"seed": None, "temperature": None, "chat_template_kwargs": {"thinking": False}}
        renamed = {"max_tokens": "max_completion_tokens"}
        body = await _body(server, opened(server.url, extra_body=extra, rename=renamed))
        moved = await _body(server, opened(server.url, system="user"))
    assert {*body} == {"model", "messages", "max_completion_tokens", "chat_template_kwargs"}
    assert body["chat_template_kwargs"] == {"thinking": False}
    assert [one["role"] for one in moved["messages"]] == ["user"]


async def test_claude_takes_fields_too_streamed_or_not() -> None:
    extra = {"thinking": {"type": "adaptive"}}
    async with serving(reply(ANTHROPIC_ANSWER)) as server:
        plain = await _body(server, opened(server.url, "anthropic", extra_body=extra))
        await _body(server, opened(server.url, "anthropic", extra_body=extra), started=lambda: None)
    assert server.bodies[-1] == plain | {"stream": True}
    assert plain["thinking"] == {"type": "adaptive"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_NAMES = st.sampled_from(
    [
        *("max_tokens", "max_completion_tokens", "maxOutputTokens", "n", "best_of", "stream"),
        *("model", "messages", "tools", "tool_choice", "service_tier", "seed", "top_k", "x"),
        *("reasoning", "thinking", "budget_tokens", "thinking_budget", "num_predict"),
    ]
)
_EXTRA = st.dictionaries(_NAMES, _JSON | st.dictionaries(_NAMES, _JSON, max_size=2), max_size=4)
_PRICED = {"model", "messages", "max_tokens", "n", "stream", "tools", "best_of", "tool_choice"}


@given(_EXTRA)
def test_no_field_raises_what_is_reserved(extra: dict[str, Any]) -> None:
    try:
        provider = opened("http://127.0.0.1:1/v1", extra_body=extra)
    except (ValueError, ConfigError):  # pydantic's, and for Claude's thoughts
        return
    plain = opened("http://127.0.0.1:1/v1")
    asked, usual = (one._dialect.body({"max_tokens": 9, "model": "m"}) for one in (provider, plain))
    assert {n: asked.get(n) for n in _PRICED} == {n: usual.get(n) for n in _PRICED}
    added = len(json.dumps(asked)) - len(json.dumps(usual))
    assert provider.input_bound(request()) - plain.input_bound(request()) >= added


@pytest.mark.parametrize("name", ["search_parameters", "enable_search", "web_search_options"])
def test_a_search_which_vendors_bill_apart_is_refused(name: str) -> None:
    def config(value: object) -> ProviderConfig:
        return ProviderConfig.model_validate({"extra_body": {name: value}})

    with pytest.raises(ValueError, match=f"leave {name} out"):
        config({"mode": "on"} if name != "enable_search" else True)
    assert config(None).extra_body == {name: None}


def test_answers_to_other_fields_are_other_answers() -> None:
    url = "http://127.0.0.1:1/v1"
    several: list[Provider] = [
        opened(url),
        opened(url, extra_body={"top_k": 1}),
        opened(url, system="user"),
    ]
    assert len({request_key(one, request()) for one in several}) == 3
    same = opened(url, rename={"max_tokens": "max_completion_tokens"}, headers={"x": "y"})
    assert request_key(same, request()) == request_key(several[0], request())


@pytest.mark.parametrize(
    ("rename", "says"),
    [
        ({"seed": "n"}, "n is no name"),
        ({"model": "name"}, "leave model out"),
        ({"max_tokens": "limit"}, "such as max_completion_tokens"),
    ],
)
def test_a_name_that_means_another_thing_is_refused(rename: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RunConfig.model_validate({"provider": {"rename": rename}})


def test_a_judge_without_a_provider_of_its_own_is_asked_in_the_same_way() -> None:
    run = ProviderConfig.model_validate(
        {"name": "openai", "model": "m", "rename": {"max_tokens": "max_completion_tokens"}}
    )
    provider = open_provider(run, 0, ENVIRON)
    assert named(ProviderConfig(model="j"), run, provider.name).rename == run.rename
    assert not named(ProviderConfig(name="openai", model="j"), run, provider.name).rename
    own = ProviderConfig.model_validate({"model": "j", "rename": {}})
    assert not named(own, run, provider.name).rename


def test_a_resumed_run_asks_judge_author_and_agents_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they left out stands in the run's config, from which it is resumed."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    how = {
        "extra_body": {"top_k": 1},
        "rename": {"max_tokens": "max_new_tokens"},
        "headers": {"x-key": "${MY_KEY}"},
        "system": "user",
        "base_url": "http://127.0.0.1:1/v1?api-version=2",
    }
    raw = {
        "task": "code_review",
        "provider": {"name": "openai", "model": "m", **how},
        "judge": {"enabled": True, "provider": {"model": "j"}},
        "behaviors": {"provider": {"model": "a"}},
        "agents": {"writer": {"provider": {"model": "c"}}},
        "prices": {model: {"input": 1, "output": 1} for model in "mjac"},
    }
    first = prepare(RunConfig.model_validate(raw)).backend.config
    again = prepare(RunConfig.model_validate(yaml.safe_load(first.to_yaml()))).backend
    for config in (first, again.config):
        asked = (config.judge.provider, config.behaviors.provider, config.agents["writer"].provider)
        for one in asked:
            assert one is not None
            assert one.model_dump(include={*how}) == how
    for each in (again.bench, again.author, again.answering("writer")):
        provider = each.provider
        assert provider.base_url == how["base_url"]
        assert Dialect.of(config.provider).variant in getattr(provider, "variant", "")


# --- headers, which may hold keys -----------------------------------------------------------------


async def test_a_header_with_a_key_is_sent_and_shown_nowhere() -> None:
    def answer(number: int) -> bytes:
        echoed = {**OPENAI_ANSWER}
        message = {"role": "assistant", "content": f"You sent {HELD}."}
        echoed["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
        return reply({"error": f"wrong {HELD}"}, 404) if number else reply(echoed)

    headers = {"api-key": "${MY_KEY}", "authorization": "Token ${MY_KEY}", "x-team": "blue"}
    async with serving(answer) as server, opened(server.url, headers=headers) as provider:
        said = await provider.complete(request())
        with pytest.raises(ProviderError) as raised:
            await provider.complete(request())
    assert f"api-key: {HELD}" in server.heads[0]
    assert f"Token {HELD}" in server.heads[0]
    assert "x-team: blue" in server.heads[0]
    config = RunConfig.model_validate({"provider": {"headers": headers}})
    for text in (said.text, str(raised.value), repr(provider._endpoint), config.to_yaml()):
        assert HELD not in text


@pytest.mark.parametrize("name", ["Authorization", "api-key", "x-goog-api-key", "X-Auth-Token"])
def test_a_written_key_is_refused_and_not_shown(name: str) -> None:
    for value in (HELD, "sk-" + "a" * 20):
        with pytest.raises(ConfigError, match=r"\$\{MY_KEY\}") as raised:
            RunConfig.model_validate({"judge": {"provider": {"headers": {name: value}}}})
        assert value not in str(raised.value)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ConfigError, match="takes NO_SUCH from the environment, where it is not"):
        opened("http://127.0.0.1:1", headers={"x-key": "${NO_SUCH}"})


@pytest.mark.parametrize("headers", [{"x": "a\nb"}, {"x y": "a"}, {"x": "ż"}])
def test_what_is_no_header_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is none"):
        RunConfig.model_validate({"provider": {"headers": headers}})


def test_only_servers_take_such_settings() -> None:
    with pytest.raises(ConfigError, match=r"provider\.extra_body is for a server"):
        open_provider(ProviderConfig(name="fake", extra_body={"top_k": 1}), 0, {})
    with pytest.raises(ConfigError, match=r"provider\.system are for provider openai"):
        opened("http://127.0.0.1:1", "anthropic", system="user")


def test_messages_with_calls_stay_as_they_are() -> None:
    chat: list[Any] = [
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "content": ""},
    ]
    assert without_system(chat) == chat
