"""What is sent to chat completions and what is read from them."""

from __future__ import annotations

import pytest

from orchestry.core.config import ProviderConfig
from orchestry.models.openai import OpenAIProvider
from orchestry.models.providers import open_provider
from tests.models.conftest import KEY, OPENAI_ANSWER, at, request
from tests.models.loopback import reply, serving


async def test_an_answer_with_its_usage() -> None:
    async with (
        serving(reply(OPENAI_ANSWER)) as server,
        at("openai", server.url + "/v1") as provider,
    ):
        answer = await provider.complete(request(stop=("END",)))
    assert (answer.text, answer.stop, answer.model, answer.usd) == ("Hello", "end", "m", 0.0)
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (30, 5, 8)
    assert server.paths == ["/v1/chat/completions"]
    assert KEY in server.heads[0]
    (body,) = server.bodies
    assert body["messages"][1] == {"role": "user", "content": "Say hi"}
    assert (body["max_tokens"], body["temperature"], body["stop"]) == (16, 0.8, ["END"])


async def test_each_sample_has_its_own_seed_and_keeps_it() -> None:
    async with serving(reply(OPENAI_ANSWER)) as server, at("openai", server.url) as provider:
        for index in (0, 1, 2, 2):
            await provider.complete(request(sample_index=index, temperature=0.0))
    seeds = [body["seed"] for body in server.bodies]
    assert len(set(seeds)) == 3
    assert seeds[2] == seeds[3]
    assert {body["temperature"] for body in server.bodies} == {0.0}


def test_the_vendors_own_server_gets_the_words_its_newer_models_know() -> None:
    config = ProviderConfig(name="openai", model="m")
    provider = open_provider(config, 0, {"OPENAI_API_KEY": KEY})
    assert isinstance(provider, OpenAIProvider)
    body = provider._body(request())
    assert body["max_completion_tokens"] == 16
    assert "max_tokens" not in body
    assert "temperature" not in body


async def test_null_content_is_an_empty_answer() -> None:
    choice = {"finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}
    raw = reply({**OPENAI_ANSWER, "choices": [choice]})
    async with serving(raw) as server, at("openai", server.url) as provider:
        answer = await provider.complete(request())
    assert (answer.text, answer.stop) == ("", "refusal")


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -4, "completion_tokens": "many"},
        {"prompt_tokens": 0, "completion_tokens": 0},
        None,
    ],
)
async def test_usage_that_is_none_counts_its_worst_case(usage: object) -> None:
    async with (
        serving(reply({**OPENAI_ANSWER, "usage": usage})) as server,
        at("openai", server.url) as provider,
    ):
        answer = await provider.complete(request())
    assert answer.input_tokens == provider.input_bound(request())
    assert answer.output_tokens == 16
