"""Draws a batch of moves: weights answer for their agents, other providers for frozen ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestry.core.concurrency import together
from orchestry.core.types import Completion, Request, sample_of
from orchestry.models.gateway import Gateway

if TYPE_CHECKING:
    from orchestry.backends.local.trainer import Trainer


@dataclass(slots=True)
class Drawing:
    """Draws for a whole team, and counts how fast the weights are."""

    trainer: Trainer
    gateway: Gateway
    elsewhere: Collection[str]
    """Agents that have a provider of their own."""
    tokens: int = 0
    """Drawn since the last `pace`."""
    seconds: float = 0.0
    """That this took."""

    async def draw(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """`n` answers per request. The weights draw while other providers answer."""
        asked = [number for number, one in enumerate(requests) if one.agent in self.elsewhere]
        drawn = [number for number, one in enumerate(requests) if one.agent not in self.elsewhere]
        parts = await together(
            [
                self._from_weights([requests[number] for number in drawn], n),
                self.gateway.sample([requests[number] for number in asked], n),
            ]
        )
        found = dict(zip((*drawn, *asked), (*parts[0], *parts[1]), strict=True))
        return [found[number] for number in range(len(requests))]

    async def _from_weights(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """Draws one batch, and records it in journal and ledger."""
        if not requests:
            return []
        self.gateway.check_door()
        self.gateway.pulse.doing = "drawing"
        began = time.monotonic()
        answers = await asyncio.to_thread(self.trainer.draw, requests, n)
        whole = time.monotonic() - began
        self.tokens += sum(one.output_tokens for samples in answers for one in samples)
        self.seconds += whole
        seconds = whole / max(1, n * len(requests))
        for request, samples in zip(requests, answers, strict=True):
            for index, completion in enumerate(samples):
                self.gateway.note(sample_of(request, index), completion, seconds)
        return answers

    def pace(self) -> dict[str, float]:
        """Tokens per second since the last call, dev problems and replays included; {} if nothing
        was drawn."""
        (tokens, seconds), self.tokens, self.seconds = (self.tokens, self.seconds), 0, 0.0
        return {"tokens_per_s": tokens / seconds} if seconds else {}
