"""Keys are stable: a change here orphans every journal and cache ever written."""

from __future__ import annotations

from orchestry.core.config import FakeConfig
from orchestry.core.types import Message, Request
from orchestry.models.fake import FakeProvider, clip_tokens
from orchestry.models.request_key import digest_of_key, place, request_digest, request_key

REQUEST = Request(
    agent="writer", model="m", messages=(Message(role="user", content="hi"),), max_tokens=8
)


def test_keys_are_those_of_the_first_release() -> None:
    assert request_digest(REQUEST) == "6be89c4b1271b98f5dcdce19f1815843"
    assert place("fake", "fake:") == "0338aaf09a64"


def test_every_field_of_a_request_counts() -> None:
    changes = ({"agent": "b"}, {"model": "n"}, {"sample_index": 1}, {"seed": 1}, {"stop": ("x",)})
    digests = {request_digest(REQUEST.model_copy(update=change)) for change in changes}
    assert len(digests | {request_digest(REQUEST)}) == 6


def test_a_key_gives_its_digest_back() -> None:
    key = request_key(FakeProvider(FakeConfig(), 0), REQUEST)
    assert key.partition("-")[0] == place("fake", "fake:")
    assert digest_of_key(key) == request_digest(REQUEST)


def test_lengths_stay_in_their_bounds() -> None:
    assert [clip_tokens(length, 10) for length in (0.1, 4.4, 99.0)] == [1, 4, 10]
