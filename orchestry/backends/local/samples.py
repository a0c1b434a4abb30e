"""What an update learns from: actions with the histories they were drawn in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One agent's action in one history, and what it was worth beside the others of its group."""

    agent: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """The EOS included where the answer ended by itself."""
    logprobs: tuple[float, ...]
    """Nats, one a token of `ids`: of the policy that drew it, at the sampling temperature."""
    advantage: float
    group: int
    """Samples of one group share a history: their prompt is computed once."""
