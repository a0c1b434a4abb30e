"""The clients that the benchmark of servers' shapes compares; each runs in its own environment.

    python -m benchmarks.peers.with_clients CLIENT URL CALLS

plays every case at URL/NUMBER/v1, then times so many calls, and prints one JSON object. Each client
is asked in its library's own way, with the options that its documentation has for such a server;
what no option does is not made up for here. Retries are off, because Orchestry's ledger counts and
reserves each attempt. Only the standard library is imported at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.peers.shapes_items import CASES, PLAIN, SPEED

WARM_UP, AT_ONCE = 4, 32
"""Rounds that are not counted, and calls of a round."""
KEY = "none-needed-here"
LIMIT = 256
Answer = dict[str, Any]


class Client(ABC):
    """One library's way of asking."""

    not_offered: Sequence[str] = ()
    """Items that the library leaves to its caller."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Closes its connections."""

    @abstractmethod
    async def ask(self, url: str, ask: Mapping[str, Any]) -> list[Answer]:
        """What it makes of each answer; see shapes_items.Found. Raises the library's errors."""

    too_long: Sequence[str] = ("context_length_exceeded",)
    """Names of the library's errors, or their codes, for a prompt that is too long."""
    later: Sequence[str] = ("RateLimitError", "InternalServerError", "APIConnectionError")
    """Names of those after which a call is tried again."""

    def kind(self, error: Exception) -> str:
        """What the library says of an error: overflow, again or no."""
        signs = {*(kind.__name__ for kind in type(error).__mro__), getattr(error, "code", None)}
        if signs & {*self.too_long}:
            return "overflow"
        return "again" if signs & {*self.later} else "no"


# --- libraries that speak OpenAI's own form -------------------------------------------------------


class Chat(Client):
    """A function that takes and gives chat completions, as OpenAI's SDK has them."""

    @abstractmethod
    async def create(self, url: str, ask: Mapping[str, Any], messages: Sequence[Any]) -> Any:
        """One answer of the library."""

    async def ask(self, url: str, ask: Mapping[str, Any]) -> list[Answer]:
        messages: list[Any] = [
            {"role": "system", "content": ask["system"]},
            {"role": "user", "content": ask["user"]},
            *_past(ask),
        ]
        found = list[Answer]()
        for _ in range(2):
            answer = await self.create(url, ask, messages)
            message = answer.choices[0].message
            found.append(_read(answer))
            if "tool" not in ask or not message.tool_calls:
                break
            results = [(call.id, ask["result"]) for call in message.tool_calls]
            messages += [message, *(_result(*one) for one in results)]
        return found


def _past(ask: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A call that another vendor's model made, and its result."""
    if call := ask.get("past"):
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        asked = {"id": call["id"], "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [asked]}
        yield _result(call["id"], ask["result"])


def _result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def _read(answer: Any) -> Answer:
    """An answer in OpenAI's form; a text in parts stays as it is, so it is no text."""
    choice, usage = answer.choices[0], answer.usage
    message = choice.message
    calls = [
        {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
        for call in message.tool_calls or ()
    ]
    content = message.content if message.content is not None else ""
    return {
        "text": content if isinstance(content, str) else json.dumps(content),
        "calls": calls,
        "refused": bool(getattr(message, "refusal", None))
        or choice.finish_reason == "content_filter",
        "input": usage and usage.prompt_tokens,
        "output": usage and usage.completion_tokens,
        "value": _value(message),
    }


def _arguments(text: Any) -> Any:
    """The arguments as a caller reads them by OpenAI's documentation."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


def _value(message: Any) -> Any:
    """What the library parsed, else what a caller parses by its documentation."""
    parsed = getattr(message, "parsed", None)
    if parsed is not None:
        return parsed.model_dump()
    try:
        return _grade().model_validate_json(message.content).model_dump()
    except ValueError:
        return None


def _grade() -> Any:
    import pydantic

    return pydantic.create_model("Grade", grade=(int, ...))


def _body(ask: Mapping[str, Any], messages: Sequence[Any]) -> dict[str, Any]:
    """The arguments that all of them share."""
    body: dict[str, Any] = {
        "messages": list(messages),
        ask.get("limit", "max_tokens"): LIMIT,
    }
    if "extra_body" in ask:
        body["extra_body"] = ask["extra_body"]
    if "headers" in ask:
        body["extra_headers"] = ask["headers"]
    if "tool" in ask:
        body["tools"] = [{"type": "function", "function": ask["tool"]}]
    return body


class OpenAI(Client):
    """What the clients of OpenAI's SDK share: one connection pool per address."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], Any] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await getattr(client, "client", client).close()  # any-llm's holds the SDK's

    def client(self, url: str, ask: Mapping[str, Any]) -> Any:
        """The SDK's client, with the faster of its two HTTP libraries."""
        import openai

        place = (url, ask.get("query", ""))
        if place not in self._clients:
            self._clients[place] = openai.AsyncOpenAI(
                base_url=url,
                api_key=KEY,
                max_retries=0,
                default_query=_query(ask),
                http_client=openai.DefaultAioHttpClient(),
            )
        return self._clients[place]


def _query(ask: Mapping[str, Any]) -> dict[str, str]:
    name, _, value = ask.get("query", "").partition("=")
    return {name: value} if name else {}


class OpenAISdk(OpenAI, Chat):
    """OpenAI's own SDK, which is below our provider too."""

    not_offered = (
        "thoughts in the text",
        "overflow",
        "bad draw",
        "illegal tool name",
        "ids of another vendor",
        "no system role",
        "thoughts are billed",
    )

    async def create(self, url: str, ask: Mapping[str, Any], messages: Sequence[Any]) -> Any:
        chat = self.client(url, ask).chat.completions
        body = {"model": ask["model"], **_body(ask, messages)}
        if "schema" in ask:
            return await chat.parse(response_format=_grade(), **body)
        return await chat.create(**body)


class LiteLLM(OpenAI, Chat):
    """litellm's `acompletion`, by the vendor's name where a case is one vendor's own."""

    not_offered = (
        "bad draw",
        "illegal tool name",
        "ids of another vendor",
    )
    too_long = ("ContextWindowExceededError", *Client.too_long)
    later = (*Client.later, "ServiceUnavailableError", "BadGatewayError")

    def __init__(self) -> None:
        import litellm

        super().__init__()
        litellm.suppress_debug_info = True
        litellm.telemetry = False
        litellm.enable_json_schema_validation = True

    async def close(self) -> None:
        import litellm

        await litellm.close_litellm_async_clients()
        await super().close()

    async def create(self, url: str, ask: Mapping[str, Any], messages: Sequence[Any]) -> Any:
        import litellm

        more: dict[str, Any] = {"response_format": _grade()} if "schema" in ask else {}
        if ask.get("no_system"):
            more["supports_system_message"] = False
        if "query" in ask:  # only a client of the caller's has one
            more["client"] = self.client(url, ask)
        return await litellm.acompletion(
            model=f"{ask.get('vendor', 'openai')}/{ask['model']}",
            api_base=url,
            api_key=KEY,
            max_retries=0,
            num_retries=0,
            **_body(ask, messages),
            **more,
        )


class AnyLLM(OpenAI, Chat):
    """any-llm's `acompletion`, with its provider `openai`."""

    not_offered = (
        "thoughts in the text",
        "bad draw",
        "illegal tool name",
        "ids of another vendor",
        "no system role",
        "thoughts are billed",
    )
    too_long = ("ContextLengthExceededError",)
    later = ("RateLimitError", "UpstreamProviderError", "GatewayTimeoutError", "ProviderError")

    async def create(self, url: str, ask: Mapping[str, Any], messages: Sequence[Any]) -> Any:
        more = {"response_format": _grade()} if "schema" in ask else {}
        provider = self._provider(url, ask)
        return await provider.acompletion(ask["model"], **_body(ask, messages), **more)

    def _provider(self, url: str, ask: Mapping[str, Any]) -> Any:
        import any_llm
        import openai

        place = (url, ask.get("query", ""))
        if place not in self._clients:
            self._clients[place] = any_llm.AnyLLM.create(
                "openai",
                api_key=KEY,
                api_base=url,
                unified_exceptions=True,
                max_retries=0,
                default_query=_query(ask),
                http_client=openai.DefaultAioHttpClient(),
            )
        return self._clients[place]


# --- libraries with forms of their own -----------------------------------------------------------


class PydanticAI(OpenAI):
    """pydantic-ai's OpenAIChatModel, by `pydantic_ai.direct`; a value by an Agent."""

    not_offered = (
        "bad draw",
        "illegal tool name",
        "ids of another vendor",
    )
    too_long = ("ModelContextWindowExceededError",)
    later = (
        "ModelRateLimitError",
        "ModelUnavailableError",
        "ModelServerError",
        "ModelConnectionError",
    )

    async def ask(self, url: str, ask: Mapping[str, Any]) -> list[Answer]:
        from pydantic_ai import messages as m
        from pydantic_ai.direct import model_request
        from pydantic_ai.models import ModelRequestParameters

        model = self._model(url, ask)
        if "schema" in ask:
            return [await self._graded(model, ask)]
        chat: list[Any] = [*self._begun(ask)]
        given = ModelRequestParameters(function_tools=[*_definitions(ask)])
        found = list[Answer]()
        for _ in range(2):
            answer = await model_request(
                model, chat, model_settings=_settings(ask), model_request_parameters=given
            )
            found.append(self._read(answer))
            calls = [part for part in answer.parts if isinstance(part, m.ToolCallPart)]
            if not calls:
                break
            results = [m.ToolReturnPart(c.tool_name, ask["result"], c.tool_call_id) for c in calls]
            chat += [answer, m.ModelRequest(parts=results)]
        return found

    def _begun(self, ask: Mapping[str, Any]) -> Iterator[Any]:
        from pydantic_ai import messages as m

        said = [m.SystemPromptPart(ask["system"]), m.UserPromptPart(ask["user"])]
        yield m.ModelRequest(parts=said)
        if call := ask.get("past"):
            name, id = call["name"], call["id"]
            yield m.ModelResponse(parts=[m.ToolCallPart(name, call["arguments"], id)])
            yield m.ModelRequest(parts=[m.ToolReturnPart(name, ask["result"], id)])

    def _model(self, url: str, ask: Mapping[str, Any]) -> Any:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.profiles.openai import OpenAIModelProfile
        from pydantic_ai.providers.openai import OpenAIProvider

        limit = ask.get("limit", "max_tokens")
        profile = OpenAIModelProfile(
            openai_chat_supports_max_completion_tokens=limit == "max_completion_tokens",
            openai_system_prompt_role="user" if ask.get("no_system") else None,
        )
        provider = OpenAIProvider(openai_client=self.client(url, ask))
        return OpenAIChatModel(ask["model"], provider=provider, profile=profile)

    async def _graded(self, model: Any, ask: Mapping[str, Any]) -> Answer:
        from pydantic_ai import Agent, NativeOutput

        agent: Any = Agent(
            model,
            output_type=NativeOutput(_grade()),
            instructions=ask["system"],
            retries=0,
            model_settings=_settings(ask),
        )
        return {
            "text": "",
            "calls": [],
            "value": (await agent.run(ask["user"])).output.model_dump(),
        }

    def _read(self, answer: Any) -> Answer:
        from pydantic_ai import messages as m

        calls = [part for part in answer.parts if isinstance(part, m.ToolCallPart)]
        return {
            "text": "".join(p.content for p in answer.parts if isinstance(p, m.TextPart)),
            "calls": [
                {"name": call.tool_name, "arguments": _arguments(call.args_as_json_str())}
                for call in calls
            ],
            "refused": answer.finish_reason == "content_filter",
            "input": answer.usage.input_tokens,
            "output": answer.usage.output_tokens,
        }


def _definitions(ask: Mapping[str, Any]) -> Iterator[Any]:
    from pydantic_ai.tools import ToolDefinition

    if tool := ask.get("tool"):
        yield ToolDefinition(
            name=tool["name"],
            description=tool["description"],
            parameters_json_schema=tool["parameters"],
        )


def _settings(ask: Mapping[str, Any]) -> Any:
    settings: dict[str, Any] = {"max_tokens": LIMIT, "max_retries": 0}
    if "extra_body" in ask:
        settings["extra_body"] = ask["extra_body"]
    if "headers" in ask:
        settings["extra_headers"] = ask["headers"]
    return settings


class Orchestry(Client):
    """Our provider `openai`, and the reader of structured answers."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    async def close(self) -> None:
        for provider in self._open.values():
            await provider.__aexit__()

    async def ask(self, url: str, ask: Mapping[str, Any]) -> list[Answer]:
        from orchestry.core.types import Message

        provider, chat = await self._provider(url, ask), [*self._begun(ask)]
        found = list[Answer]()
        for _ in range(2):
            said = await provider.complete(self._request(ask, chat))
            found.append(self._read(said))
            if not said.calls:
                break
            chat.append(
                Message(role="assistant", content=said.text, calls=said.calls, extra=said.extra)
            )
            chat += [Message(role="tool", content=ask["result"], call=c.id) for c in said.calls]
        return found

    def _begun(self, ask: Mapping[str, Any]) -> Iterator[Any]:
        from orchestry.core.tools import ToolCall
        from orchestry.core.types import Message

        yield Message(role="system", content=ask["system"])
        yield Message(role="user", content=ask["user"])
        if call := ask.get("past"):
            made = ToolCall(
                id=call["id"], name=call["name"], arguments=json.dumps(call["arguments"])
            )
            yield Message(role="assistant", content="", calls=(made,))
            yield Message(role="tool", content=ask["result"], call=made.id)

    def _request(self, ask: Mapping[str, Any], chat: Sequence[Any]) -> Any:
        from orchestry.core.tools import ToolSpec
        from orchestry.core.types import Request

        return Request(
            agent="one",
            model=ask["model"],
            messages=tuple(chat),
            max_tokens=LIMIT,
            response_schema=ask.get("schema"),
            tools=(ToolSpec(**ask["tool"]),) if "tool" in ask else (),
        )

    async def _provider(self, url: str, ask: Mapping[str, Any]) -> Any:
        from orchestry.core.config import ProviderConfig
        from orchestry.models.providers import open_provider

        if url not in self._open:
            limit = ask.get("limit", "max_tokens")
            config = ProviderConfig(
                name="openai",
                model=ask["model"],
                base_url=f"{url}?{ask['query']}" if "query" in ask else url,
                extra_body={**ask.get("extra_body", {}), **dict.fromkeys(ask.get("leave_out", ()))},
                headers=ask.get("headers", {}),
                rename={} if limit == "max_tokens" else {"max_tokens": limit},
                system="user" if ask.get("no_system") else "system",
            )
            provider: Any = open_provider(config, 0, {"OPENAI_API_KEY": KEY})
            self._open[url] = await provider.__aenter__()
        return self._open[url]

    def _read(self, said: Any) -> Answer:
        return {
            "text": said.text,
            "calls": [{"name": call.name, "arguments": call.given} for call in said.calls],
            "refused": said.stop == "refusal",
            "input": said.input_tokens,
            "output": said.output_tokens,
            "value": self._value(said.text),
        }

    def _value(self, text: str) -> Any:
        from orchestry.judge.structured import Malformed, parsed

        try:
            return parsed(text, lambda found: _grade()(**found).model_dump())
        except (Malformed, ValueError):
            return None

    def kind(self, error: Exception) -> str:
        from orchestry.core.errors import PromptTooLong, ProviderError

        if isinstance(error, PromptTooLong):
            return "overflow"
        return "again" if isinstance(error, ProviderError) and error.transient else "no"


CLIENTS: dict[str, type[Client]] = {
    "orchestry": Orchestry,
    "litellm": LiteLLM,
    "any-llm": AnyLLM,
    "pydantic-ai": PydanticAI,
    "openai": OpenAISdk,
}


async def play(client: Client, url: str) -> list[list[Answer]]:
    """What the client makes of every case, in order; an error ends a case."""
    found = list[list[Answer]]()
    for number, case in enumerate(CASES):
        try:
            found.append(await client.ask(f"{url}/{number}/v1", case.ask))
        except Exception as error:  # whatever a library raises is its answer
            found.append(
                [{"error": client.kind(error), "said": f"{type(error).__name__}: {error}"}]
            )
    return found


async def cpu_ms(client: Client, url: str, calls: int) -> float:
    """CPU time of this process per call, with all its threads: the median over rounds."""
    place, marks = f"{url}/{SPEED}/v1", list[float]()
    ask = PLAIN | {"system": "You review code. " * 30}
    for number in range(WARM_UP + calls // AT_ONCE):
        marks.append(time.process_time())
        asks = [ask | {"user": f"{number} {i}: " + "text " * 100} for i in range(AT_ONCE)]
        await asyncio.gather(*(client.ask(place, one) for one in asks))
    marks.append(time.process_time())
    rounds = [after - before for before, after in pairwise(marks)]
    return 1000 * median(rounds[WARM_UP:]) / AT_ONCE


async def _main(name: str, url: str, calls: int) -> dict[str, Any]:
    async with CLIENTS[name]() as client:
        return {"found": await play(client, url), "cpu_ms": await cpu_ms(client, url, calls)}


def main() -> None:
    """Prints what the client made of the cases, and its time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("url")
    parser.add_argument("calls", type=int)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(_main(args.client, args.url, args.calls))))


if __name__ == "__main__":
    main()
