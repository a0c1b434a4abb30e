"""Every way a server can fail gives one clear ProviderError, and never shows the key."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from benchmarks.peers.shapes_items import OTHERWISE, OVERFLOWS
from orchestry.core.errors import PromptTooLong
from orchestry.models.http import Endpoint, refusal, retry_after, text_in
from tests.models.conftest import KEY, at, failure, request
from tests.models.loopback import reply, serving

ENDPOINT = Endpoint("openai", "http://u:pw@h:1/v1?k=v", "K_VAR", "U_VAR", 1.0, KEY)


@pytest.mark.parametrize(
    ("status", "transient", "billed", "fix"),
    [
        (400, False, False, "correct the setting"),
        (401, False, False, "_API_KEY"),
        (402, False, False, "credit"),
        (403, False, False, "_API_KEY"),
        (404, False, False, "_BASE_URL"),
        (408, True, True, "again"),
        (413, False, False, "shorten"),
        (422, False, False, "correct the setting"),
        (521, True, True, "again"),
        (429, True, True, "again"),
        (500, True, True, "again"),
        (502, True, True, "again"),
        (503, True, True, "again"),
        (504, True, True, "again"),
        (529, True, True, "again"),
    ],
)
async def test_each_status_has_its_meaning(
    vendor: str, status: int, transient: bool, billed: bool, fix: str
) -> None:
    body = {"error": {"type": "t", "message": f"the key {KEY} is no good"}}
    async with serving(reply(body, status)) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert (error.transient, error.billed) == (transient, billed)
    assert error.refused == (status in (400, 404, 413, 422)), "one request's own fault"
    assert str(status) in str(error)
    assert "is no good" in str(error)
    assert fix in str(error)
    assert len(server.bodies) == 1, "the SDK must not retry"


@pytest.mark.parametrize(("status", "billed"), [(400, False), (500, False), (502, True)])
def test_what_a_vendor_says_it_does_not_bill_costs_nothing(status: int, billed: bool) -> None:
    url = "https://generativelanguage.googleapis.com/v1beta/openai/"
    gemini = Endpoint("openai", url, "K_VAR", "U_VAR", 1.0, KEY)
    assert refusal(gemini, status, {}, b"").billed == billed
    assert refusal(ENDPOINT, status, {}, b"").billed == (status >= 500)


@pytest.mark.parametrize("status", [409, 425, 429, 503, 529])
def test_only_a_vendors_own_host_is_busy_for_free(status: int) -> None:
    """A gateway may say so after the vendor behind it has billed."""
    vendors = "https://api.anthropic.com", "https://api.openai.com/v1", "https://api.x.ai/v1"
    others = "https://openrouter.ai/api/v1", "http://127.0.0.1:4000", "https://api.openai.com.h/v1"
    billed = [
        refusal(Endpoint("openai", url, "K_VAR", "U_VAR", 1.0, KEY), status, {}, b"").billed
        for url in (*vendors, *others)
    ]
    assert billed == [False] * 3 + [True] * 3


@pytest.mark.parametrize("body", [b"", b"\xff\xfe\x00junk", b"<html><title>Oops</title></html>"])
@pytest.mark.parametrize("status", [200, 400, 500])
async def test_bodies_that_are_no_json(vendor: str, status: int, body: bytes) -> None:
    raw = reply(body, status, content_type="text/html; charset=nonsense")
    async with serving(raw) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert error.transient == (status != 400)
    assert error.billed == (status != 400)
    assert "\n" not in str(error)
    assert "Oops" in str(error) or b"Oops" not in body


@pytest.mark.parametrize("body", [[], None, 3, {}, {"content": None}, {"choices": []}])
async def test_json_that_is_no_answer_was_billed(vendor: str, body: object) -> None:
    async with serving(reply(body)) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert (error.transient, error.billed) == (True, True)


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (429, "insufficient_quota", "no credit"),
        (429, "billing_error", "no credit"),
        (400, "invalid_request_error", "You have reached your specified API usage limits."),
        (400, "invalid_request_error", "Your credit balance is too low."),
    ],
)
async def test_an_account_without_credit_is_no_single_requests_fault(
    vendor: str, status: int, kind: str, said: str
) -> None:
    raw = reply({"error": {"type": kind, "code": kind, "message": said}}, status)
    async with serving(raw) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert (error.transient, error.refused, error.billed) == (False, False, False)
    assert "add credit" in str(error)


async def test_a_port_that_refuses_costs_nothing_and_names_the_variable(vendor: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with at(vendor, url) as provider:
        error = await failure(provider)
    assert (error.transient, error.billed) == (True, False)
    assert f"{vendor.upper()}_BASE_URL" in str(error)
    assert url in str(error)


async def test_a_host_that_does_not_exist(vendor: str) -> None:
    async with at(vendor, "http://nowhere.invalid") as provider:
        error = await failure(provider)
    assert (error.transient, error.billed) == (True, False)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        reply(gzip.compress(b"{}")[:-9] + b"123456789", content_encoding="gzip"),
    ],
    ids=["dropped", "cut", "no http", "broken gzip"],
)
async def test_a_connection_that_breaks_may_have_been_billed(vendor: str, raw: bytes) -> None:
    async with serving(raw) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert (error.transient, error.billed) == (True, True)


async def test_silence_ends_at_the_time_limit(vendor: str) -> None:
    async with serving(None) as server, at(vendor, server.url, timeout_s=0.2) as provider:
        start = time.monotonic()
        error = await failure(provider)
    assert time.monotonic() - start < 2
    assert (error.transient, error.billed) == (True, True)
    assert "0.2 s" in str(error)


@pytest.mark.parametrize(("advice", "status"), [("true", 400), ("false", 500)])
async def test_the_servers_advice_on_retrying_is_followed(
    vendor: str, advice: str, status: int
) -> None:
    raw = reply({}, status, x_should_retry=advice, retry_after="7")
    async with serving(raw) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert error.transient == (advice == "true")
    assert error.retry_after == 7.0


async def test_no_exception_hangs_on_ours(vendor: str) -> None:
    async with serving(reply({}, 500)) as server, at(vendor, server.url) as provider:
        error = await failure(provider)
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.parametrize(
    ("said", "text"), [("a\ud800b", "a\ufffdb"), (f"sent: {KEY}.", "sent: ***.")]
)
async def test_lone_surrogates_and_the_key_in_an_answer_are_replaced(
    vendor: str, answers: Callable[[str], dict[str, Any]], said: str, text: str
) -> None:
    def at_hello(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: at_hello(v) for k, v in value.items()}
        if isinstance(value, list):
            return [at_hello(v) for v in value]
        return said if value == "Hello" else value

    async with (
        serving(reply(at_hello(answers(vendor)))) as server,
        at(vendor, server.url) as provider,
    ):
        answer = await provider.complete(request())
    assert answer.text == text


@pytest.mark.parametrize("status", [301, 307, 308])
async def test_a_redirect_is_not_followed(
    vendor: str, answers: Callable[[str], dict[str, Any]], status: int
) -> None:
    async with serving(reply(answers(vendor))) as other:
        moved = reply(b"", status, location=f"{other.url}/there?key={KEY}")
        async with serving(moved) as server, at(vendor, server.url) as provider:
            error = await failure(provider)
    assert other.bodies == []
    assert (error.transient, error.billed) == (False, False)
    assert f"a redirect to {other.url}/there, which is not followed" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": formatdate(1030, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(900, usegmt=True)}, 0.0),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, lambda: 1000.0) == seconds


def test_a_server_message_is_cut_and_scrubbed() -> None:
    body = f'{{"error": "{KEY} and sk-live-abcdef123 {"x" * 900}"}}'.encode()
    error = refusal(ENDPOINT, 400, {}, body)
    assert KEY not in str(error)
    assert "abcdef123" not in str(error)
    assert len(str(error)) < 500
    assert "pw" not in str(error)
    assert KEY not in repr(ENDPOINT)


@pytest.mark.parametrize("too_long", [True, False])
def test_a_prompt_that_is_too_long_is_known_in_many_servers_words(too_long: bool) -> None:
    for status, body in OVERFLOWS if too_long else OTHERWISE:
        error = refusal(ENDPOINT, status, {}, json.dumps(body).encode())
        assert isinstance(error, PromptTooLong) == too_long, body


def test_what_a_gateway_passes_on_is_read() -> None:
    raw = json.dumps({"error": {"code": "insufficient_quota", "message": f"pay, {KEY}"}})
    body = {"error": {"message": "Provider returned error", "metadata": {"raw": raw}}}
    error = refusal(ENDPOINT, 429, {}, json.dumps(body).encode())
    assert not error.transient
    assert "Provider returned error: pay, ***: add credit" in str(error)


def test_a_used_up_quota_is_not_tried_again() -> None:
    body = b'{"error": {"code": "insufficient_quota", "message": "pay"}}'
    error = refusal(ENDPOINT, 429, {}, body)
    assert not error.transient
    assert "credit" in str(error)


def test_what_is_no_text_is_an_empty_answer() -> None:
    assert text_in("zażółć 🙂") == "zażółć 🙂"
    assert text_in(None) == ""
