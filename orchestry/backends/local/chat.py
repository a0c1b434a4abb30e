"""What a base's chat template takes, found by asking it to write a chat whose texts are known.

A template may write no system message, want its texts as lists of parts, or leave messages out
without a word. Agents would then answer prompts that nobody wrote, so the form that writes all
texts in order is found when the base is loaded; a template without one is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

from orchestry.core.errors import ConfigError, reason

DAY = datetime(2024, 7, 26)
"""Today's date for templates that write it, in all runs: prompts depend on nothing but their texts,
so a resumed run goes on as it began. Llama's templates name this day where they know none."""
_TODAY = re.compile(r"""\bstrftime_now\(\s*(['"])(.*?)\1\s*\)""")
_MARKS = ("Quillon", "Brastow", "Fennick", "Dorvale")
_CHAT = [
    {"role": role, "content": mark}
    for role, mark in zip(("system", "user", "assistant", "user"), _MARKS, strict=True)
]
_IN_ANSWERS = ("tool_call>", "tool_response>", "think>")
"""The ends of marks that an answer rightly holds."""


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How a chat is given to a base's template, and what the template adds."""

    folded: bool = False
    """Whether the system's text stands at the head of the first user's: the template knows no
    system."""
    in_parts: bool = False
    """Whether a text is a list of parts."""
    end: int | None = None
    """The token with which the template ends an answer, if it is one of the tokenizer's own."""
    controls: tuple[str, ...] = ()
    """Names of control tokens, longest first: in no message's text may they become the tokens."""

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> ChatForm:
        """Of a tokenizer with a chat template. Raises ConfigError if no form writes all texts."""
        fault = ""
        for in_parts, folded in product((False, True), repeat=2):
            form = cls(folded, in_parts)
            try:
                chat = form.written(_CHAT)
                text = str(
                    tokenizer.apply_chat_template(chat, tokenize=False, enable_thinking=False)
                )
            except Exception as error:  # a template may raise anything
                fault = fault or reason(error)
                continue
            places = [text.find(mark) for mark in _MARKS]
            if -1 not in places and places == sorted(places):
                return cls(folded, in_parts, *_added(tokenizer, text))
            lost = [one["role"] for one, at in zip(_CHAT, places, strict=True) if at < 0]
            fault = fault or f"it {'leaves out ' + lost[0] if lost else 'changes the order'}"
        raise ConfigError(
            f"the chat template of {name} does not write a chat of system, user and assistant "
            f"({fault}): choose a model that was tuned for chats, or put another "
            "chat_template.jinja into its folder"
        )

    def written(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages as the template takes them."""
        chat = [dict(one) for one in messages]
        if self.folded and chat and chat[0]["role"] == "system":
            chat = _fold(chat)
        if self.in_parts:
            for one in chat:
                one["content"] = [{"type": "text", "text": one["content"]}]
        return chat

    def plain(self, text: str) -> str:
        """The text with the names of control tokens broken up."""
        for name in self.controls:
            text = text.replace(name, f"{name[:1]} {name[1:]}")
        return text


def dated(template: str) -> str:
    """The template with DAY as today's date."""
    return _TODAY.sub(lambda found: json.dumps(DAY.strftime(found[2])), template)


def _fold(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system's text in the first user's turn, or as a turn of its own before an assistant's."""
    system, rest = chat[0], chat[1:]
    if rest and rest[0]["role"] == "user":
        text = f"{system['content']}\n\n{rest[0]['content']}"
        return [{**rest[0], "content": text}, *rest[1:]]
    return [{"role": "user", "content": system["content"]}, *rest]


def _added(tokenizer: Any, text: str) -> tuple[int | None, tuple[str, ...]]:
    """The token after the last answer of a chat as it was written, and all control tokens: those
    that the tokenizer calls special, under whatever name, and those that the template writes."""
    added = {str(token.content): (i, token) for i, token in tokenizer.added_tokens_decoder.items()}
    names = sorted(added, key=len, reverse=True)
    source = text + str(tokenizer.chat_template)
    controls = tuple(
        one for one in names if one.strip() and (added[one][1].special or _written_by(source, one))
    )
    after = text[text.index(_MARKS[2]) + len(_MARKS[2]) :].lstrip()
    ends: Iterable[int] = (added[one][0] for one in controls if after.startswith(one))
    return next(iter(ends), None), controls


def _written_by(source: str, name: str) -> bool:
    return len(name) > 1 and name in source and not name.endswith(_IN_ANSWERS)
