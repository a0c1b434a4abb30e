"""What a model's server adds to its answers: fields that it wants back, thoughts, text in parts.

Fields that only the server understands are kept as JSON text, so that values stay hashable and a
resumed run sends the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from orchestry.core.values import utf8

THINKING = "thinking_blocks"
"""The field that holds Claude's thinking, which only servers of its API are sent."""
TOOL_USE = "tool_use"
"""The field that holds what was added to a call in Claude's form; also for such servers alone."""
_THINKS = ("thinking", "reasoning", "redacted_thinking")
_OPEN = re.compile(r"\s*<(think|thinking|thought)>", re.I)
_CLOSE = re.compile(r"</(think|thinking|thought)>\s*", re.I)


def as_dict(value: object) -> dict[str, Any]:
    """An object as it is, {} in place of anything else."""
    return value if isinstance(value, dict) else {}


def packed(fields: Mapping[str, Any]) -> str:
    """Fields as text; '' if none says anything.

    >>> packed({"reasoning_content": "Two and two.", "audio": None})
    '{"reasoning_content": "Two and two."}'
    """
    said = {name: value for name, value in fields.items() if value not in (None, "", [], {}, False)}
    return utf8(json.dumps(said, ensure_ascii=False)) if said else ""


def unpacked(text: str) -> dict[str, Any]:
    """The fields that `packed` made text of; {} if a program sent no such text."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def others(found: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """The fields that have none of these names."""
    return {str(name): value for name, value in found.items() if name not in known}


def text_in_parts(content: object) -> str:
    """The text of a message's content, which may come in parts; thoughts are no text.

    >>> text_in_parts([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}])
    '4'
    """
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        if content.get("type") in _THINKS:
            return ""
        found = (content.get(name) for name in ("text", "refusal", "content"))
        return next((text for one in found if (text := text_in_parts(one))), "")
    return "".join(map(text_in_parts, content)) if isinstance(content, list) else ""


def has_thoughts(content: object) -> bool:
    """Whether content in parts holds thoughts."""
    parts = content if isinstance(content, list) else []
    return any(isinstance(one, dict) and one.get("type") in _THINKS for one in parts)


def split_thoughts(text: str, *, cut: bool) -> tuple[str, str]:
    """The thoughts at the beginning of an answer's text, and the answer. Some prompts end with the
    opening mark. Without a closing mark all is thought if the limit `cut` it, else all is answer.

    >>> split_thoughts("<think>Two and two.</think> 4", cut=False)
    ('Two and two.', '4')
    """
    opened = _OPEN.match(text)
    closed = _CLOSE.search(text, opened.end() if opened else 0)
    if closed is None:
        return (text[opened.end() :].strip(), "") if opened and cut else ("", text)
    if opened is None and "<think" in text[: closed.start()].lower():
        return "", text  # the answer speaks of the marks
    thoughts = text[opened.end() if opened else 0 : closed.start()].strip()
    more, rest = split_thoughts(text[closed.end() :], cut=cut) if opened else ("", "")
    rest = rest if opened else text[closed.end() :]
    return "\n".join(filter(None, (thoughts, more))), rest
