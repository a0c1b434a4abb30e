"""A structured request at every vendor: what is sent, what it may cost, what a refusal says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.server.bill import Options
from benchmarks.server.loopback import serve
from orchestry.core.config import FakeConfig, ProviderConfig
from orchestry.core.errors import ProviderError
from orchestry.core.types import Provider
from orchestry.models.fake import FakeProvider
from orchestry.models.http import without
from orchestry.models.openai import OpenAIProvider
from orchestry.models.providers import open_provider
from orchestry.models.recorded import RecordedProvider
from orchestry.models.request_key import request_key
from orchestry.store.journal import Answered, Journal, Opened
from tests.models.conftest import (
    ANTHROPIC_ANSWER,
    KEY,
    OPENAI_ANSWER,
    SCHEMA,
    Verdict,
    assert_no_secret,
    at,
    request,
)
from tests.models.loopback import reply, serving

MODEL = "claude-sonnet-5"


def asked(**fields: Any) -> Any:
    return request(response_schema=SCHEMA, **{"max_tokens": 400, **fields})


@asynccontextmanager
async def on_a_vendors_server(vendor: str, **options: Any) -> AsyncIterator[tuple[Provider, Any]]:
    """A provider at a server that checks schemas, answers by them, and keeps its own bill."""
    path = "/v1" if vendor == "openai" else ""
    async with (
        serve(Options(bytes_per_token=1.0, **options)) as (url, server),
        at(vendor, url + path) as provider,
    ):
        yield provider, server


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_that_enforces_schemas_takes_it_and_keeps_to_it(
    vendor: str, streamed: bool
) -> None:
    started = (lambda: None) if streamed else None
    async with on_a_vendors_server(vendor) as (provider, server):
        answers = [await provider.complete(asked(seed=i), started=started) for i in range(5)]
    for answer in answers:
        verdict = json.loads(answer.text)
        if vendor == "openai":  # it took every keyword, so it kept to every one
            Verdict.model_validate(verdict)
        assert list(verdict) == SCHEMA["required"]
        assert answer.stop == "end"
    assert server.bill.billed_requests == 5


async def test_the_bound_covers_a_schema_billed_by_the_byte(vendor: str) -> None:
    async with on_a_vendors_server(vendor) as (provider, server):
        await provider.complete(asked())
    plain = provider.input_bound(request())
    assert len(json.dumps(SCHEMA)) < server.bill.input_tokens <= provider.input_bound(asked())
    assert provider.input_bound(asked()) > plain + len(json.dumps(SCHEMA))


async def test_claude_is_told_in_words_what_it_refuses_as_keywords() -> None:
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        await provider.complete(asked())
    form = server.bodies[0]["output_config"]["format"]
    sent = form["schema"]
    assert form["type"] == "json_schema"
    assert list(sent["properties"]) == list(SCHEMA["properties"])
    assert sent["properties"]["grade"] == SCHEMA["properties"]["grade"]
    assert sent["properties"]["maximum"] == {
        "type": "string",
        "description": "The best (maxLength: 60)",
    }
    assert sent["properties"]["notes"]["description"] == "(minItems: 2, maxItems: 2)"
    assert (sent["required"], sent["additionalProperties"]) == (SCHEMA["required"], False)


async def test_claude_may_be_asked_for_one_item_at_least() -> None:
    schema = {"type": "array", "minItems": 1, "items": {"type": "string"}}
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        await provider.complete(request(response_schema=schema))
    assert server.bodies[0]["output_config"]["format"]["schema"] == schema


async def test_a_verdict_asked_again_has_no_angle() -> None:
    async with serving(reply(ANTHROPIC_ANSWER)) as server, at("anthropic", server.url) as provider:
        for index in range(3):
            await provider.complete(asked(sample_index=index))
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]


OPEN = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (SCHEMA, True),
        ({**OPEN, "required": ["a"]}, True),
        (OPEN, False),  # its property may be left out
        ({**OPEN, "required": ["a"], "additionalProperties": True}, False),
        ({"type": "array", "items": OPEN}, False),
        ({"anyOf": [{"type": "null"}, OPEN]}, False),
        ({"$ref": "#/$defs/A", "$defs": {"A": OPEN}}, False),
        ({"type": "array", "items": True}, False),
        ({"anyOf": 5, "properties": 5}, False),
        ({}, False),
    ],
)
async def test_strict_mode_is_asked_for_where_the_schema_allows_it(
    schema: dict[str, Any], strict: bool
) -> None:
    async with serving(reply(OPENAI_ANSWER)) as server, at("openai", server.url) as provider:
        await provider.complete(request(response_schema=schema))
    (sent,) = server.bodies
    assert sent["response_format"]["json_schema"]["strict"] is strict


async def test_a_compatible_server_gets_the_whole_schema_in_strict_mode() -> None:
    async with serving(reply(OPENAI_ANSWER)) as server, at("openai", server.url) as provider:
        await provider.complete(asked())
        await provider.complete(request())
    assert server.bodies[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
    }
    assert "response_format" not in server.bodies[1]


def test_openais_own_server_is_told_lengths_in_words() -> None:
    provider = open_provider(ProviderConfig(name="openai", model="m"), 0, {"OPENAI_API_KEY": KEY})
    assert isinstance(provider, OpenAIProvider)
    sent = provider._body(asked())["response_format"]["json_schema"]["schema"]["properties"]
    assert sent["maximum"] == {"type": "string", "description": "The best (maxLength: 60)"}
    assert (sent["notes"]["minItems"], sent["notes"]["maxItems"]) == (2, 2)
    assert sent["notes"]["items"] == {"type": "string", "description": "(maxLength: 40)"}


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_that_knows_no_schemas_is_named_with_the_way_out(
    vendor: str, status: int
) -> None:
    body = {"error": {"message": "unknown field: response_format", "type": "bad_request"}}
    async with serving(reply(body, status)) as server, at(vendor, server.url) as provider:
        started = (lambda: None) if vendor == "anthropic" else None
        with pytest.raises(ProviderError, match=r"judge\.provider.*judge\.enabled=false") as info:
            await provider.complete(asked(), started=started)
        with pytest.raises(ProviderError, match="correct the setting or prompt") as plain:
            await provider.complete(request(), started=started)
    assert "unknown field: response_format" in str(info.value)
    assert "judge" not in str(plain.value)
    assert not info.value.transient
    assert not info.value.billed
    assert_no_secret(info.value)


async def test_the_fake_provider_answers_by_the_schema() -> None:
    provider = FakeProvider(FakeConfig(), 0)
    answers = [await provider.complete(asked(sample_index=i)) for i in range(20)]
    again = [await provider.complete(asked(sample_index=i)) for i in range(20)]
    assert answers == again
    verdicts = [Verdict.model_validate_json(answer.text) for answer in answers]
    assert len({verdict.grade for verdict in verdicts}) == 3
    assert all(a.output_tokens == -(-len(a.text) // 4) for a in answers)
    assert answers[0].input_tokens == provider.input_bound(asked())
    assert provider.input_bound(asked()) > provider.input_bound(request()) + 50


async def test_the_fake_providers_verdict_is_cut_at_max_tokens() -> None:
    answer = await FakeProvider(FakeConfig(), 0).complete(asked(max_tokens=5))
    assert (answer.output_tokens, answer.stop, len(answer.text)) == (5, "length", 20)


async def test_a_script_wins_over_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"agent": "judge", "text": "no verdict"}\n', encoding="utf-8")
    provider = FakeProvider(FakeConfig(script=path), 0)
    assert (await provider.complete(asked(agent="judge"))).text == "no verdict"
    with pytest.raises(ProviderError, match="no line for agent 'writer'"):
        await provider.complete(asked())


async def test_a_recorded_verdict_replays_and_only_for_its_schema(tmp_path: Path) -> None:
    provider = FakeProvider(FakeConfig(), 0)
    answer = await provider.complete(asked())
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(Opened(at=0.0, provider="fake", model="fake-1"))
    journal.append(
        Answered(
            call=1,
            key=request_key(provider, asked()),
            agent="judge",
            purpose="judge",
            source="provider",
            completion=answer,
            at=0.0,
        )
    )
    journal.close()
    recorded = RecordedProvider(tmp_path)
    assert await recorded.complete(asked()) == answer
    for other in (request(max_tokens=400), asked().model_copy(update={"response_schema": {}})):
        with pytest.raises(ProviderError, match="holds no answer"):
            await recorded.complete(other)


schemas = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer"])},
        optional={"maxLength": st.integers(0, 9), "description": st.text(max_size=5)},
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner}, optional={"maxItems": st.integers(0, 9)}
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(
                    st.sampled_from(["maxLength", "maxItems", "items", "a"]), inner
                ),
            }
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=6,
)


def is_bound(keyword: str, value: object) -> bool:
    return keyword in ("maxLength", "maxItems")


@given(schemas)
def test_stripping_moves_bounds_to_words_and_touches_nothing_else(
    schema: Mapping[str, Any],
) -> None:
    before = json.dumps(schema)
    stripped = without(schema, is_bound)
    assert json.dumps(schema) == before
    assert without(stripped, is_bound) == stripped
    assert without(schema, lambda keyword, value: False) == schema
    _compare(schema, stripped)


def _compare(schema: Mapping[str, Any], stripped: Mapping[str, Any]) -> None:
    bounds = {keyword: value for keyword, value in schema.items() if is_bound(keyword, value)}
    assert set(stripped) - {"description"} == set(schema) - set(bounds) - {"description"}
    for keyword, value in bounds.items():
        assert f"{keyword}: {value}" in stripped["description"]
    assert list(schema.get("properties", {})) == list(stripped.get("properties", {}))
    for name, part in schema.get("properties", {}).items():
        _compare(part, stripped["properties"][name])
    if "items" in schema:
        _compare(schema["items"], stripped["items"])
