"""Any server with OpenAI's chat completions, through the openai SDK.

Samples differ by temperature and by a seed, a hash of the whole request including the sample index.
So a server that honours seeds repeats its answers, and k samples stay k different samples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from orchestry.core.errors import ProviderError
from orchestry.core.extras import (
    THINKING,
    TOOL_USE,
    as_dict,
    has_thoughts,
    others,
    packed,
    split_thoughts,
    text_in_parts,
    unpacked,
)
from orchestry.core.tools import ANY, ToolCall, ToolSpec, fit_id
from orchestry.core.types import Completion, Message, Request
from orchestry.models.dialect import Dialect
from orchestry.models.http import (
    Endpoint,
    SdkProvider,
    bad_draw,
    error_in,
    failure_within,
    malformed,
    post,
    request_bound,
    schema_bound,
    without,
)
from orchestry.models.request_key import request_digest
from orchestry.models.usage import billed

VENDOR_URL = "https://api.openai.com/v1"
_TEMPERATURE = 0.8
"""Default temperature; not sent to the vendor's own server, whose newer models allow only their
own."""

_KNOWN = ("role", "content", "tool_calls", "function_call", "refusal", "annotations", "audio")
_BAD_DRAWS = {"malformed_function_call", "function_call_filter: malformed_function_call"}
_STOPS = {"stop": "end", "length": "length", "content_filter": "refusal", "tool_calls": "calls"}


class OpenAIProvider(SdkProvider):
    """One chat-completions endpoint."""

    name = "openai"
    client_class = "AsyncOpenAI"
    embeds = True

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        dialect: Dialect | None = None,
        *,
        split_thoughts: bool = True,
    ) -> None:
        super().__init__(endpoint, model, dialect)
        self._is_vendor = is_vendor(endpoint.url)
        named = f"{urlsplit(endpoint.url).hostname} {model}".lower()
        self._is_mistral = re.search(r"mi[sx]tral|codestral|magistral|devstral", named) is not None
        self._splits = split_thoughts
        self.variant += "" if split_thoughts else "\nthoughts in the text"

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """One attempt; see Provider. The server caches prompts by itself."""
        if request.purpose == "embed":
            return await self._embedded(request)
        answer = await self._sent(self._body(request), self._post, Dialect.mended)
        if started is not None:
            started()
        return self._completion(request, answer)

    async def _embedded(self, request: Request) -> Completion:
        """Embeddings of what the last message tells, in JSON."""
        told = {"model": request.model, **json.loads(request.messages[-1].content)}
        answer = await post(self._client, "/embeddings", told, self._endpoint)
        if (failure := self._failure(answer, None)) is not None:
            raise failure
        data = answer.get("data")
        if not isinstance(data, list) or not data or not all(isinstance(d, dict) for d in data):
            raise malformed(self._endpoint, f"no embeddings in it: {answer}")
        usage = billed(answer.get("usage"), self.input_bound(request), 0, some=False)
        return Completion(
            text="",
            model=request.model,
            input_tokens=usage.input,
            extra=self._endpoint.answered(packed({"data": data})),
        )

    def input_bound(self, request: Request) -> int:
        """The bytes of everything that is sent."""
        own = schema_bound(self._schema(request)) + self._dialect.room
        return request_bound(request) + own

    def leads(self, request: Request) -> bool:
        """Always False: writing the prompt cache is free, so waiting saves nothing."""
        return False

    async def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await post(self._client, "/chat/completions", body, self._endpoint)

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [self._message(m) for m in request.messages],
            "seed": int(request_digest(request)[:7], 16),
            # The vendor's newer models refuse max_tokens; most other servers know only that.
            ("max_completion_tokens" if self._is_vendor else "max_tokens"): request.max_tokens,
        }
        if request.temperature is not None:
            body["temperature"] = request.temperature
        elif not self._is_vendor:
            body["temperature"] = _TEMPERATURE
        if request.stop:
            body["stop"] = list(request.stop)
        if (schema := self._schema(request)) is not None:
            named = {"name": "answer", "strict": _closed(schema), "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if request.tools:
            body["tools"] = [_tool(one) for one in request.offered]
            body |= _choice(request)
        return body

    def _failure(
        self, answer: Mapping[str, Any], choice: Mapping[str, Any] | None
    ) -> ProviderError | None:
        """The error that a server wrote into an answer of status 200."""
        found = choice or {}
        error = error_in(answer) or error_in(found)
        stop = str(found.get("finish_reason")).lower()
        if stop in _BAD_DRAWS:
            return bad_draw(self._endpoint, f"finish_reason {stop}")
        if not error and stop == "error":
            error = f"finish_reason error: {found}"
        counts = any(as_dict(answer.get("usage")).values())
        drawn = bool(choice or counts or answer.get("output_sensitive"))
        return failure_within(self._endpoint, error, drawn=drawn) if error else None

    def _message(self, message: Message) -> dict[str, Any]:
        """A message as this API takes it."""
        extra = others(unpacked(message.extra), THINKING)
        found: dict[str, Any] = {"role": message.role, "content": message.content, **extra}
        if message.calls:
            found["tool_calls"] = [
                {**_called(call), "id": self._id(call.id)} for call in message.calls
            ]
        if message.role == "tool":
            found["tool_call_id"] = self._id(message.call)
        return found

    def _id(self, id: str) -> str:
        """A call's id as this server takes it: Mistral wants nine letters and digits."""
        return fit_id(id, r"[a-zA-Z0-9]{9}", 9) if self._is_mistral else fit_id(id)

    def _schema(self, request: Request) -> dict[str, Any] | None:
        """The request's schema in the form that this server accepts; only the vendor's own has
        limits."""
        if request.response_schema is None:
            return None
        return without(request.response_schema, _refuses if self._is_vendor else _takes_all)

    def _completion(self, request: Request, answer: Mapping[str, Any]) -> Completion:
        choice = _first(answer.get("choices"))
        if (failure := self._failure(answer, choice)) is not None:
            raise failure
        message = choice.get("message") if choice else None
        if choice is None or not isinstance(message, dict):
            raise malformed(self._endpoint, f"no choice in it: {answer}")
        stop = str(choice.get("finish_reason") or "end")
        content, refused = message.get("content"), message.get("refusal")
        said = self._endpoint.answered(text_in_parts(content) or text_in_parts(refused))
        thoughts, text = ("", said)
        if self._splits:
            thoughts, text = split_thoughts(said, cut=stop == "length")
        asked = message.get("tool_calls")
        numbers = count(sum(len(one.calls) for one in request.messages))
        found = map(ToolCall.read, asked if isinstance(asked, list) else [], numbers)
        calls = [call.with_texts(self._endpoint.answered) for call in found]
        extra = _extra(message)
        bound, some = self.input_bound(request), bool(said or calls or packed(extra))
        usage = billed(answer.get("usage"), bound, request.max_tokens, some=some)
        return Completion(
            text=text,
            model=request.model,
            input_tokens=usage.input,
            output_tokens=usage.output,
            cached_tokens=usage.cached,
            cache_write_tokens=usage.written,
            stop="refusal" if refused and not content else _STOPS.get(stop, stop),
            calls=tuple(calls),
            extra=self._endpoint.answered(packed(extra)),
            thoughts=thoughts,
        )


def _extra(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this server added, and its content if thoughts stand between its parts."""
    content = message.get("content")
    return {
        **others(message, *_KNOWN),
        "content": content if has_thoughts(content) else None,
    }


def _tool(spec: ToolSpec) -> dict[str, Any]:
    """A tool as strict servers take it: they refuse an object that names no properties."""
    schema = spec.parameters
    if schema.get("type") == "object":
        schema = {**schema, "properties": schema.get("properties") or {}}
    return spec.model_copy(update={"parameters": schema}).function


def _choice(request: Request) -> dict[str, Any]:
    """Whether a tool may, must or can't be called."""
    if request.must_answer:
        return {"tool_choice": "none"}
    if request.must_call in ("", ANY):
        return {"tool_choice": "required"} if request.must_call else {}
    return {"tool_choice": {"type": "function", "function": {"name": request.must_call}}}


def _called(call: ToolCall) -> dict[str, Any]:
    """With an object as its arguments, and a legal name: servers refuse others."""
    arguments = json.dumps(call.given, ensure_ascii=False)
    return others(call.fit.model_copy(update={"arguments": arguments}).function, TOOL_USE)


def is_vendor(url: str) -> bool:
    """Whether an address is OpenAI's own; it needs a key, and some settings have other names."""
    return urlsplit(url).hostname == "api.openai.com"


def _refuses(keyword: str, value: object) -> bool:
    """Keywords that bound a value and are not in the vendor's strict mode."""
    return keyword in ("minLength", "maxLength")


def _closed(schema: object) -> bool:
    """Whether every object requires all of its properties and forbids others, which the vendor's
    strict mode demands; a program's own schema may not."""
    if not isinstance(schema, dict) or not {"type", "enum", "const", "anyOf", "$ref"} & {*schema}:
        return False
    named, defined = as_dict(schema.get("properties")), as_dict(schema.get("$defs"))
    if schema.get("type") == "object" or named:
        required = schema.get("required")
        if schema.get("additionalProperties") is not False or not isinstance(required, list):
            return False
        if any(name not in required for name in named):
            return False
    either = schema.get("anyOf", [])
    parts = [*named.values(), *defined.values(), *(either if isinstance(either, list) else [None])]
    return all(map(_closed, [*parts, *([schema["items"]] if "items" in schema else [])]))


def _takes_all(keyword: str, value: object) -> bool:
    return False


def _first(choices: object) -> dict[str, Any] | None:
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None
