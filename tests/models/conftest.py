"""What the provider tests share: both SDK providers on a loopback server, and a request."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from orchestry.core.config import ProviderConfig
from orchestry.core.errors import ProviderError
from orchestry.core.types import Message, Provider, Request
from orchestry.models.providers import open_provider

KEY = "sk-test-0123456789-very-secret"

ANTHROPIC_ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
    },
}
OPENAI_ANSWER: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello"}}
    ],
    "usage": {
        "prompt_tokens": 30,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 8},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "grade": {"type": "integer", "enum": [1, 2, 3]},
        "kind": {"type": "string", "enum": ["good", "bad"]},
        "maximum": {"type": "string", "description": "The best", "maxLength": 60},
        "notes": {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {"type": "string", "maxLength": 40},
        },
    },
    "required": ["grade", "kind", "maximum", "notes"],
    "additionalProperties": False,
}
"""One of its properties is called as a keyword is; all keywords that bound a length are in it."""


class Verdict(BaseModel):
    """What SCHEMA describes, as a reader checks it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    grade: Literal[1, 2, 3]
    kind: Literal["good", "bad"]
    maximum: str = Field(max_length=60)
    notes: list[Annotated[str, Field(max_length=40)]] = Field(min_length=2, max_length=2)


def request(text: str = "Say hi", **fields: Any) -> Request:
    """A request of one user message after a system message."""
    messages = (Message(role="system", content="Be brief"), Message(role="user", content=text))
    return Request(
        **{"agent": "writer", "model": "m", "messages": messages, "max_tokens": 16, **fields}
    )


def at(name: str, url: str, timeout_s: float = 5.0) -> Provider:
    """An SDK provider for a loopback server."""
    config = ProviderConfig.model_validate(
        {"name": name, "model": "m", "base_url": url, "timeout_s": timeout_s}
    )
    return open_provider(config, 0, {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY})


async def failure(provider: Provider, **arguments: Any) -> ProviderError:
    """The ProviderError that one request meets; nothing about it may show the key."""
    with pytest.raises(ProviderError) as info:
        await provider.complete(request(), **arguments)
    assert_no_secret(info.value)
    return info.value


def assert_no_secret(error: BaseException) -> None:
    """Looks at text, repr and traceback, and at all errors that hang on this one."""
    seen: BaseException | None = error
    while seen is not None:
        shown = "".join(traceback.format_exception(seen)) + str(seen) + repr(seen)
        assert KEY not in shown
        assert KEY not in repr(vars(seen))
        assert "Bearer" not in shown
        seen = seen.__cause__ or seen.__context__


@pytest.fixture(params=["anthropic", "openai"])
def vendor(request: pytest.FixtureRequest) -> str:
    """Both SDK providers in turn."""
    return str(request.param)


@pytest.fixture
def answers() -> Callable[[str], dict[str, Any]]:
    """A good answer in a vendor's form."""
    return {"anthropic": ANTHROPIC_ANSWER, "openai": OPENAI_ANSWER}.__getitem__
