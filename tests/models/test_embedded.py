"""The real embedded model, reached through both vendors' provider code."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from orchestry.core.config import ProviderConfig
from orchestry.core.errors import ProviderError
from orchestry.core.tools import ANY, ToolCall, ToolSpec
from orchestry.core.types import Completion, Message, Request, Step
from orchestry.models.embedded import EmbeddedProvider
from orchestry.models.gguf import MODEL, SHA256
from orchestry.models.providers import open_provider
from tests.models.conftest import SCHEMA, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded() -> AsyncIterator[EmbeddedProvider]:
    provider = EmbeddedProvider(timeout_s=120.0)
    async with provider:
        yield provider


def ask(text: str = "Say hi.", *, max_tokens: int = 8, sample_index: int = 0) -> Request:
    return Request(
        agent="writer",
        model=MODEL,
        messages=(Message(role="user", content=text),),
        max_tokens=max_tokens,
        sample_index=sample_index,
    )


async def test_it_answers_and_counts(embedded: EmbeddedProvider) -> None:
    answer = await embedded.complete(ask())
    assert answer.text.strip()
    assert answer.model == MODEL
    assert 0 < answer.input_tokens <= embedded.input_bound(ask())
    assert 0 < answer.output_tokens <= 8


@pytest.mark.slow
async def test_samples_in_parallel_differ(embedded: EmbeddedProvider) -> None:
    asked = [ask("Name an animal and why.", sample_index=index) for index in range(4)]
    answers = await asyncio.gather(*map(embedded.complete, asked))
    assert len({answer.text for answer in answers}) > 1


@pytest.mark.slow
async def test_a_schema_is_kept_to_by_grammar(embedded: EmbeddedProvider) -> None:
    """Bounds and all: without a longest string, this model may ramble until max_tokens."""
    text = "Grade the answer 's[::-1]' to 'reverse the string s', with two notes."
    asked = [
        ask(text, max_tokens=300, sample_index=index).model_copy(update={"response_schema": SCHEMA})
        for index in range(2)
    ]
    answers = await asyncio.gather(*map(embedded.complete, asked))
    for request, answer in zip(asked, answers, strict=True):
        Verdict.model_validate_json(answer.text)
        assert answer.stop == "end"
        assert answer.input_tokens <= embedded.input_bound(request)


@pytest.mark.slow
async def test_tools_calls_and_results_are_in_its_prompt(embedded: EmbeddedProvider) -> None:
    """Its server would leave them out without a word."""
    spec = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
    call = ToolCall(id="c", name="look", arguments="{}")
    step = Step(said=Completion(text="", model="m", calls=(call,)), results=("a red door " * 20,))
    offered = ask().model_copy(update={"tools": (spec,)})
    shown = offered.model_copy(update={"messages": (*ask().messages, *step.messages)})
    plain, tools, after = [await embedded.complete(one) for one in (ask(), offered, shown)]
    assert plain.input_tokens + 50 < tools.input_tokens
    assert tools.input_tokens + 60 < after.input_tokens <= embedded.input_bound(shown)
    assert (await embedded.complete(shown.model_copy(update={"must_answer": True}))).text


@pytest.mark.slow
async def test_a_call_that_must_be_made_is_made(embedded: EmbeddedProvider) -> None:
    """A model of this size seldom calls by itself; its answer is drawn by the call's schema."""
    letter = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {}}}
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    specs = (ToolSpec(name="ask", parameters=letter), ToolSpec(name="add", parameters=number))
    for must_call in (ANY, "add"):
        asked = ask("Add 2.", max_tokens=60).model_copy(
            update={"tools": specs, "must_call": must_call}
        )
        answer = await embedded.complete(asked)
        (call,) = answer.calls
        assert call.name in ("ask", "add") if must_call == ANY else call.name == "add"
        assert must_call == ANY or type(call.given["n"]) is int
        assert answer.text == ""
        assert answer.input_tokens <= embedded.input_bound(asked)


async def test_the_anthropic_provider_speaks_to_the_same_server(
    embedded: EmbeddedProvider,
) -> None:
    config = ProviderConfig(name="anthropic", model=MODEL, base_url=embedded.url)
    started: list[str] = []
    async with open_provider(config, 0, {"ANTHROPIC_API_KEY": embedded.key}) as claude:
        plain = await claude.complete(ask())
        streamed = await claude.complete(ask(), started=lambda: started.append("now"))
    assert started == ["now"]
    for answer in (plain, streamed):
        assert answer.text.strip()
        assert 0 < answer.input_tokens <= claude.input_bound(ask())
        assert 0 < answer.output_tokens <= 8


async def test_the_port_is_shut_to_those_without_the_key(embedded: EmbeddedProvider) -> None:
    config = ProviderConfig(name="openai", model=MODEL, base_url=f"{embedded.url}/v1")
    async with open_provider(config, 0, {"OPENAI_API_KEY": "another-key"}) as stranger:
        with pytest.raises(ProviderError, match=r"401.*OPENAI_API_KEY"):
            await stranger.complete(ask())


async def test_a_prompt_longer_than_the_context_fails_at_once(embedded: EmbeddedProvider) -> None:
    with pytest.raises(ProviderError, match=r"exceeds .*4096.*shorten the prompt") as info:
        await embedded.complete(ask("word " * 6000))
    assert not info.value.transient
    assert not info.value.billed


async def test_another_model_is_refused(embedded: EmbeddedProvider) -> None:
    with pytest.raises(ProviderError, match=MODEL) as info:
        await embedded.complete(ask().model_copy(update={"model": "gpt-5"}))
    assert not info.value.transient


async def test_its_identity_is_that_of_the_weights(embedded: EmbeddedProvider) -> None:
    assert embedded.base_url == f"embedded:{SHA256[:12]}"
    assert embedded.sha256 == SHA256
    assert "127.0.0.1" in embedded.url


SCRIPT = """
import asyncio
from orchestry.models.embedded import EmbeddedProvider
from orchestry.core.types import Message, Request

async def main():
    {body}
asyncio.run(main())
"""
BODIES = {
    "stopped at once": """
    for _ in range(2):
        async with EmbeddedProvider(60.0):
            pass
""",
    "stopped while it answers": """
    async with EmbeddedProvider(60.0) as provider:
        messages = (Message(role="user", content="Tell a story."),)
        request = Request(agent="a", model=provider.model, messages=messages, max_tokens=2000)
        tasks = [asyncio.create_task(provider.complete(request)) for _ in range(10)]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
""",
    "never stopped": """
    await EmbeddedProvider(60.0).__aenter__()
    raise SystemExit(0)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_it_ends_in_time_and_in_silence(body: str) -> None:
    command = [sys.executable, "-c", SCRIPT.format(body=body)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "srv" not in done.stdout + done.stderr
