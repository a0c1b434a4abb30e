"""Tools in a chat's own text, as open models of many families learned them from NousResearch's
Hermes 2 Pro: for chat templates, and servers of such models, that know no tools.

Tools stand in the system prompt as JSON, calls in the answer as JSON in <tool_call>, results in the
next message in <tool_response>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from orchestry.core.tools import ToolCall, ToolSpec
from orchestry.core.types import Message, Request

_TOLD = """\
# Tools

You may call one or more of these functions before you answer:
<tools>
{tools}
</tools>

For each call, write its name and arguments as a JSON object in <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-as-JSON-object>}}
</tool_call>"""
_FRAMES = re.compile("</?tool_(?:call|response)>")
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def plain(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """The chat without any tool in its structure."""
    found = _turns(messages)
    if not tools:
        return found
    told = _TOLD.format(
        tools="\n".join(json.dumps(one.function, ensure_ascii=False) for one in tools)
    )
    if found and found[0].role == "system":
        return [Message(role="system", content=f"{found[0].content}\n\n{told}"), *found[1:]]
    return [Message(role="system", content=told), *found]


def call_begun(request: Request) -> str:
    """What an answer begins with that must be a call; '' where it need not be one."""
    if not request.must_call:
        return ""
    names = [json.dumps(one.name) for one in request.offered]
    return '<tool_call>\n{"name": ' + (f'{names[0]}, "arguments": ' if len(names) == 1 else '"')


def call_schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """The JSON schema of a call of one of the tools."""
    return {"anyOf": [_schema_of(one) for one in tools]}


def _schema_of(tool: ToolSpec) -> dict[str, Any]:
    """References mean places of the tool's own schema, so one that has some may be any object."""
    free = tool.parameters.get("type") != "object" or '"$ref"' in json.dumps(tool.parameters)
    given = {"type": "object"} if free else dict(tool.parameters)
    named = {"name": {"const": tool.name}, "arguments": given}
    return {"type": "object", "properties": named, "required": [*named]}


def read_calls(text: str, before: Sequence[Message] = ()) -> tuple[str, tuple[ToolCall, ...]]:
    """An answer's text without its calls, and the calls, numbered on from those `before`. One that
    is no JSON object of a name and arguments has an empty name, so that its result says what is
    wrong."""
    numbered = enumerate(_CALL.findall(text), sum(len(one.calls) for one in before))
    calls = tuple(_read(found, place) for place, found in numbered)
    return (_CALL.sub("", text).strip() if calls else text), calls


def broken(result: str) -> str:
    """A result whose text can't end its own frame, or begin a call."""
    return _FRAMES.sub(lambda found: f"< {found[0][1:]}", result)


def _turns(messages: Sequence[Message]) -> list[Message]:
    """Messages as text; results that follow each other are one message of the user."""
    found = list[Message]()
    for place, message in enumerate(messages):
        if message.role != "tool":
            found.append(_said(message))
            continue
        text = f"<tool_response>\n{broken(message.content)}\n</tool_response>"
        if messages[place - 1].role == "tool":
            text = f"{found.pop().content}\n{text}"
        found.append(Message(role="user", content=text))
    return found


def _said(message: Message) -> Message:
    """An assistant's calls as it wrote them."""
    if not message.calls:
        return message
    return Message(role=message.role, content=in_text(message))


def in_text(message: Message) -> str:
    """A message with its calls behind its text, as an assistant writes them."""
    if not message.calls:
        return message.content
    pairs = [(json.dumps(one.name), one.arguments.strip() or "{}") for one in message.calls]
    said = [f'{{"name": {name}, "arguments": {given}}}' for name, given in pairs]
    calls = [f"<tool_call>\n{one}\n</tool_call>" for one in said]
    return "\n".join([message.content, *calls]).strip()


def _read(text: str, place: int) -> ToolCall:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    named = isinstance(found, dict) and isinstance(found.get("name"), str)
    if not named:
        return ToolCall(id=f"call_{place}", name="", arguments=text.strip()).clean
    given = found.get("arguments", {})
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return ToolCall(id=f"call_{place}", name=found["name"], arguments=arguments).clean
