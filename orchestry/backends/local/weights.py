"""The team's own weights, as a provider that bills nobody."""

from __future__ import annotations

from collections.abc import Callable

from orchestry.core.types import Completion, Request

_TEMPLATE_TOKENS = 64  # what a chat template puts around a message, at most


class Weights:
    """They answer through Lockstep, all that are asked at once in one batch."""

    name, base_url = "local", ""
    cacheable, bills_unanswered = False, False
    slots: int | None = None
    device: str | None = None
    """What they lie on, once they are loaded."""
    sha256: str | None = None
    """Of the file that they come from, where it is known."""

    def __init__(self, model: str, deterministic: bool) -> None:
        self.model, self.deterministic = model, deterministic

    async def complete(
        self, request: Request, *, shared: bool = False, started: Callable[[], None] | None = None
    ) -> Completion:
        """Never asked: moves are drawn in step, and who judges is another provider."""
        raise AssertionError(f"the agents' weights were asked for {request.purpose}")

    def input_bound(self, request: Request) -> int:
        """A token is at least a byte."""
        texts = [message.content.encode() for message in request.messages]
        return sum(len(text) + _TEMPLATE_TOKENS for text in texts)

    def leads(self, request: Request) -> bool:
        return False

    async def __aenter__(self) -> Weights:
        return self

    async def __aexit__(self, *exc: object) -> None: ...
