"""How a server wants requests otherwise than OpenAI does: fields added, left out or renamed, and no
system role.

The user's settings say so, or the server itself: a request that it refuses for such a reason is
sent once more as it asks for. A refused request is not billed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from orchestry.core.config import ProviderConfig
from orchestry.core.errors import PromptTooLong, ProviderError

_T = TypeVar("_T")
_OTHER_NAME = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
_DISPENSABLE = ("temperature", "seed", "tool_choice")
_UNKNOWN = re.compile(
    r"un(?:supported|known|recogni[sz]ed|expected)|(?:not|n't) (?:supported?|permitted|allowed)"
    r"|extra (?:inputs|fields)|additional propert|only the default|instead|deprecated",
    re.IGNORECASE,
)
_ROLES = re.compile(
    r"\bsystem\b.{0,60}(?:\bnot\b|n't|\bun|invalid|\bonly\b)|roles?\b.{0,80}\bsystem\b"
    r"|(?:not|n't|un\w+|invalid).{0,60}\bsystem\b|developer instruction|roles? must alternate"
    r"|only user and assistant",
    re.IGNORECASE,
)
"""What servers and chat templates say of a system message, or of two user messages in a row."""
_TEMPLATES = re.compile(r"\broles?\b|developer instruction", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What is changed in each request's body, in this order."""

    extra: Mapping[str, Any] = field(default_factory=dict)
    no_system: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ProviderConfig) -> Dialect:
        """As the settings say."""
        return cls(config.extra_body, config.system == "user", config.rename)

    @property
    def variant(self) -> str:
        """What answers depend on, beside the request: part of where they come from."""
        said = [dict(self.extra), self.no_system]
        return f"\n{json.dumps(said, sort_keys=True)}" if any(said) else ""

    @property
    def room(self) -> int:
        """An upper bound on the input tokens that it adds to a request."""
        return len(json.dumps(dict(self.extra)).encode()) if self.extra else 0

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request's body as this server takes it."""
        found = _merged(body, self.extra)
        if "tool_choice" in body and "tool_choice" not in found:
            found = _without_choice(found, body["tool_choice"])
        if self.no_system:
            found["messages"] = without_system(found["messages"])
        return {self.rename.get(name, name): value for name, value in found.items()}

    def mended(self, sent: Mapping[str, Any], error: ProviderError) -> tuple[Dialect, str] | None:
        """What a refusal of that body suggests, and in words; None if nothing."""
        said = str(error)
        if isinstance(error, PromptTooLong):
            return None
        # A template's failure is a 500 of some servers. Any other fault may have been billed, so it
        # is no reason to ask again within one reservation.
        sure = error.refused or (not error.busy and _TEMPLATES.search(said))
        plain = without_system(sent["messages"])
        if sure and _ROLES.search(said) and plain != sent["messages"]:
            why = "takes no system role there, so that text begins the user's message"
            return replace(self, no_system=True), f"{why} (provider.system=user)"
        if (mended := self.mended_choice(sent, error)) is not None:
            return mended
        if not error.refused or not _UNKNOWN.search(said):
            return None
        for name in filter(sent.__contains__, (*_OTHER_NAME, *_DISPENSABLE)):
            if re.search(rf"(?<!\w){name}(?!\w)", said):
                return self._without(name)
        return None

    def mended_choice(
        self, sent: Mapping[str, Any], error: ProviderError
    ) -> tuple[Dialect, str] | None:
        """The same of a server that can't be told which tool to call, such as Claude's while it
        thinks."""
        told = "tool_choice" in sent and "tool_choice" not in self.extra
        said = told and re.search(r"tool[_ ]choice", str(error), re.IGNORECASE)
        return self._without("tool_choice") if said and error.refused and not error.billed else None

    def _without(self, name: str) -> tuple[Dialect, str] | None:
        if name in _DISPENSABLE:
            why = f"takes no {name}, which is left out (provider.extra_body.{name}=null)"
            return replace(self, extra={**self.extra, name: None}), why
        other = _OTHER_NAME[name]
        if other in self.rename:  # it refused that one too
            return None
        why = f"takes {other} in place of {name} (provider.rename.{name}={other})"
        return replace(self, rename={**self.rename, name: other}), why


Mend = Callable[[Dialect, Mapping[str, Any], ProviderError], tuple[Dialect, str] | None]


async def ask(
    dialect: Dialect,
    body: Mapping[str, Any],
    send: Callable[[dict[str, Any]], Awaitable[_T]],
    mend: Mend,
) -> tuple[_T, Dialect, list[str]]:
    """The answer to a request, how the server took it, and what that differs in, in words. A
    request that it refuses for how it is written is sent as it wants it."""
    found = list[str]()
    while True:
        sent = dialect.body(body)
        try:
            return await send(sent), dialect, found
        except ProviderError as error:
            if (mended := mend(dialect, sent, error)) is None:
                raise
            dialect, why = mended
            found.append(why)


def _without_choice(body: Mapping[str, Any], choice: Any) -> dict[str, Any]:
    """The body for a server that is not told which tool to call: offered is what may be called."""
    found = dict(body)
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind == "none" and isinstance(choice, Mapping):
        found["tool_choice"] = choice  # Claude takes it while it thinks, and wants its tools told
    elif kind == "none":
        del found["tools"]
    elif kind in ("function", "tool"):
        name = choice.get("function", choice)["name"]
        found["tools"] = [one for one in body["tools"] if one.get("function", one)["name"] == name]
    return found


def without_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The chat in turns of user and assistant: the user says what the system says, and what one of
    them says in several messages in a row is one message."""
    found = list[dict[str, Any]]()
    for message in messages:
        one = dict(message)
        if one["role"] in ("system", "developer"):
            one["role"] = "user"
        last = found[-1] if found else {}
        if _plain(one) and _plain(last) and last["role"] == one["role"]:
            found[-1] = {**last, "content": f"{last['content']}\n\n{one['content']}"}
        else:
            found.append(one)
    return found


def _plain(message: Mapping[str, Any]) -> bool:
    """Whether it is nothing but a text; a tool's results stay apart."""
    said = {*message} == {"role", "content"} and message["role"] != "tool"
    return said and isinstance(message["content"], str)


def _merged(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the fields of `extra`, at any depth; null leaves one out."""
    found = dict(body)
    for name, value in extra.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, Mapping):
            below = found.get(name)
            found[name] = _merged(below if isinstance(below, Mapping) else {}, value)
        else:
            found[name] = value
    return found
