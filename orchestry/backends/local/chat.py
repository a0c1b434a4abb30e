"""What a base's chat template takes, found by asking it to write a chat whose texts are known.

A template may write no system message, want its texts as lists of parts, or leave messages out
without a word. Agents would then answer prompts that nobody wrote, so the form that writes all
texts in order is found when the base is loaded; a template without one is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from typing import Any

from orchestry.core.errors import ConfigError, reason
from orchestry.models.dialect import without_system

DAY = datetime(2024, 7, 26)
"""Today's date for templates that write it, in all runs: prompts depend on nothing but their texts,
so a resumed run goes on as it began. Llama's templates name this day where they know none."""
_DATED = (
    "{%- macro strftime_now(form) -%}{{ form"
    + "".join(
        f".replace({code!r}, {DAY.strftime(code)!r})"
        for code in ("%-d", "%-m", *(f"%{letter}" for letter in "BbAadmYyjFDHIMSp"))
    )
    + " }}{%- endmacro %}{{ '' }}"
)
"""Put before a template, it takes the clock away; transformers takes no function from us."""
_MARKS = ("Quillon", "Brastow", "Fennick", "Dorvale")
_CHAT = [
    {"role": role, "content": mark}
    for role, mark in zip(("system", "user", "assistant", "user"), _MARKS, strict=True)
]
_LATE = [*_CHAT[:3], {"role": "system", "content": "Wexlow"}, _CHAT[3]]
_IN_ANSWERS = ("tool_call>", "tool_response>", "think>")
"""The ends of marks that an answer rightly holds."""
_BRACKETED = re.compile("[<[({|\uff5c].*[])>}|\uff5c]", re.DOTALL)
"""Names in brackets; the last one is DeepSeek's fullwidth bar."""
_TRIES = 8
"""How often a text is broken up until no control token comes out of it."""


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How a chat is given to a base's template, and what the template adds."""

    folded: bool = False
    """Whether the system's text stands at the head of the first user's: the template knows no
    system."""
    in_parts: bool = False
    """Whether a text is a list of parts."""
    late: bool = True
    """Whether a system message after the first one is written; else it is the user's text."""
    end: int | None = None
    """The token with which the template ends an answer, if it is one of the tokenizer's own."""
    controls: tuple[str, ...] = ()
    """Names of control tokens, longest first: in no message's text may they become the tokens."""
    control_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> ChatForm:
        """Of a tokenizer with a chat template. Raises ConfigError if no form writes all texts."""
        fault = ""
        for in_parts, folded in product((False, True), repeat=2):
            form = cls(folded, in_parts)
            try:
                chat = form.written(_CHAT)
                text = str(rendered(tokenizer, chat, tokenize=False))
            except Exception as error:  # a template may raise anything
                fault = fault or reason(error)
                continue
            if not (lost := _lost(_CHAT, text)):
                late = form._writes_late(tokenizer)
                found = replace(form, late=late, **_added(tokenizer, text))
                found._check_forgery(tokenizer, name)
                return found
            fault = fault or f"it {lost}"
        raise ConfigError(
            f"the chat template of {name} does not write a chat of system, user and assistant "
            f"({fault}): choose a model that was tuned for chats, or put another "
            "chat_template.jinja into its folder"
        )

    def written(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages as the template takes them."""
        chat = [dict(one) for one in messages]
        if self.folded or not self.late:
            kept = 0 if self.folded else 1
            chat = [*chat[:kept], *without_system(chat[kept:])]
        if self.in_parts:
            for one in chat:
                one["content"] = [{"type": "text", "text": one["content"]}]
        return chat

    def plain(self, tokenizer: Any, text: str) -> str:
        """The text with control tokens broken up by a space, under their names and under any
        spelling that the tokenizer takes for them. Raises ConfigError where that can't be done."""
        for name in self.controls:
            text = text.replace(name, f"{name[:1]} {name[1:]}")
        for _ in range(_TRIES):
            places = self._forged(tokenizer, text)
            if not places:
                return text
            for start, end in reversed(places):
                start += len(text[start:end]) - len(text[start:end].lstrip())
                text = f"{text[:start]}{text[start : start + 1]} {text[start + 1 :]}"
        raise ConfigError(
            "the tokenizer makes a control token of plain text, "
            f"{text[places[0][0] : places[0][1]]!r}: choose another model"
        )

    def cleaned(self, tokenizer: Any, value: Any) -> Any:
        """The same for all texts of a JSON value."""
        if isinstance(value, str):
            return self.plain(tokenizer, value)
        if isinstance(value, Mapping):
            return {self.plain(tokenizer, k): self.cleaned(tokenizer, v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.cleaned(tokenizer, one) for one in value]
        return value

    def _writes_late(self, tokenizer: Any) -> bool:
        try:
            text = str(rendered(tokenizer, self.written(_LATE), tokenize=False))
        except Exception:  # a template may raise anything
            return False
        return not _lost(_LATE, text)

    def _forged(self, tokenizer: Any, text: str) -> list[tuple[int, int]]:
        """Where a text's control tokens stand. A tokenizer in Python can't tell."""
        if not tokenizer.is_fast:
            return []
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(found["input_ids"], found["offset_mapping"], strict=True)
        return [place for token, place in pairs if token in self.control_ids]

    def _check_forgery(self, tokenizer: Any, name: str) -> None:
        """Raises ConfigError if a template puts broken names together again."""
        said = (_MARKS[3], _MARKS[3] + self.plain(tokenizer, " ".join(self.controls)))
        ids = (rendered(tokenizer, self.written([{**_CHAT[3], "content": one}])) for one in said)
        honest, forged = (Counter(i for i in one if i in self.control_ids) for one in ids)
        if honest != forged:
            raise ConfigError(
                f"the chat template of {name} makes control tokens of a message's text, so an "
                "agent could forge another's turn: choose another model, or put another "
                "chat_template.jinja into its folder"
            )


def rendered(
    tokenizer: Any,
    chat: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    **options: Any,
) -> Any:
    """What the template makes of a chat, without thinking and with DAY as today's date."""
    template = str(tokenizer.get_chat_template(None, tools))
    if "strftime_now" in template:
        template = _DATED + template
    given = {"chat_template": template, "tools": tools, "return_dict": False, **options}
    return tokenizer.apply_chat_template(chat, enable_thinking=False, **given)


def _lost(chat: Sequence[Mapping[str, str]], text: str) -> str:
    """What is wrong with a written chat; '' if each text comes out, in order."""
    places = [text.find(one["content"]) for one in chat]
    gone = [one["role"] for one, at in zip(chat, places, strict=True) if at < 0]
    if gone:
        return f"leaves out {gone[0]}"
    return "" if places == sorted(places) else "changes the order"


def _added(tokenizer: Any, text: str) -> dict[str, Any]:
    """Fields of a ChatForm: the token after the last answer of a chat as it was written, and all
    control tokens: those that the tokenizer calls special, under whatever name, those that the
    template writes, and those in brackets."""
    added = {str(token.content): (i, token) for i, token in tokenizer.added_tokens_decoder.items()}
    names = sorted(added, key=len, reverse=True)
    source = text + str(tokenizer.chat_template)
    controls = tuple(
        one for one in names if one.strip() and (added[one][1].special or _written_by(source, one))
    )
    after = text[text.index(_MARKS[2]) + len(_MARKS[2]) :].lstrip()
    ends: Iterable[int] = (added[one][0] for one in controls if after.startswith(one))
    # An unknown character becomes the unknown token, which is no control.
    ids = frozenset(added[one][0] for one in controls) - {tokenizer.unk_token_id}
    return {"end": next(iter(ends), None), "controls": controls, "control_ids": ids}


def _written_by(source: str, name: str) -> bool:
    written = name in source or _BRACKETED.fullmatch(name) is not None
    return len(name) > 1 and written and not name.endswith(_IN_ANSWERS)
