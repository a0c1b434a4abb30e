"""A chat loop for the agents of verifiers, within this process (written for verifiers 0.4).

verifiers' own loop, its harness `null`, is a program that it installs by uv from the network and
starts anew for each turn of an agent.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp


class Chat(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Asks until an answer calls no tool. Its only tools are those of the environment's tool
    servers."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """One turn of an agent, which may be several calls; what fails is in the trace."""
        system, prompt = self.resolve_prompt(data)
        told = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
        messages = [{"role": "system", "content": system}] if system else []
        messages += map(message_to_wire, told)
        specs = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        async with AsyncExitStack() as stack:
            tools, *served = await connect_mcp({"mcpServers": specs}, stack)
            client = await stack.enter_async_context(_client(endpoint, secret))
            await _talk(client, ctx.model, messages, tools, *served)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def _client(endpoint: str, secret: str) -> Any:
    """Calls verifiers' own server on this machine, which asks the model; so no proxy is asked, and
    nothing is tried again here."""
    import openai

    own = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False)  # it is no https
    return openai.AsyncOpenAI(
        base_url=endpoint, api_key=secret, max_retries=0, timeout=None, http_client=own
    )


async def _talk(
    client: Any, model: str, messages: list[Any], tools: list[Any], dispatch: Any, servers: Any
) -> None:
    import openai

    given = {"tools": tools} if tools else {}
    while True:
        try:
            found = await client.chat.completions.create(model=model, messages=messages, **given)
        except openai.APIStatusError as error:
            if is_context_overflow(error):  # the end of the conversation, not a fault
                return
            raise
        said = found.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return
        for call in said.tool_calls:
            content = await _called(call.function, dispatch, servers)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def _called(asked: Any, dispatch: Any, servers: Any) -> Any:
    """What a tool gives; what is wrong with the call, if something is."""
    try:
        given = json.loads(asked.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are not JSON ({error})"
    if not isinstance(given, dict):
        return "error: the arguments are not a JSON object"
    if asked.name not in dispatch:
        return f"error: there is no tool {asked.name!r}"
    return await call_mcp(servers, dispatch, asked.name, given)


__all__ = ["Chat"]
