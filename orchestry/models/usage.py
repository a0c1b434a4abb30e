"""Usage: what the calls of a run came to, by agent and purpose. A fold of journal events."""

from __future__ import annotations

from dataclasses import dataclass

from orchestry.models.ledger import NANO, nano
from orchestry.store.journal import Answered
from orchestry.store.records import UsageRecord


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    cache_hits: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    nano_usd: int = 0
    """Whole nano-dollars: their sum is the same in whatever order answers arrive."""


class Meter:
    """Adds up answers, live ones and those of an earlier process of the run alike."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], _Sum] = {}

    def add(self, event: Answered) -> None:
        """Takes one answer; those from the cache count as hits alone."""
        total = self._sums.setdefault((event.agent, event.purpose), _Sum())
        if event.source == "cache":
            total.cache_hits += 1
        if event.source not in ("provider", "weights"):
            return
        total.calls += 1
        total.input_tokens += event.completion.input_tokens
        total.output_tokens += event.completion.output_tokens
        total.nano_usd += nano(event.completion.usd)

    def rows(self) -> tuple[UsageRecord, ...]:
        """One row an (agent, purpose), in order of both."""
        return tuple(
            UsageRecord(
                agent=agent,
                purpose=purpose,
                calls=total.calls,
                cache_hits=total.cache_hits,
                input_tokens=total.input_tokens,
                output_tokens=total.output_tokens,
                usd=total.nano_usd / NANO,
            )
            for (agent, purpose), total in sorted(self._sums.items())
        )
