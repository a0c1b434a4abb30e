"""Orchestry on the relay task: a beam of k=4 and W=2, 20 calls per episode.

Defaults otherwise, but for the episodes in flight: half as many as places, at least the default of
8. An episode that waits for its slowest sample leaves places free, which others must fill.

The cache is off, as in all contestants; ledger and journal are on, as they always are.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import orchestry
from benchmarks.peers.contest import MAX_TOKENS, MODEL, Heat, compete
from orchestry.core.config import (
    CacheConfig,
    JudgeConfig,
    ProviderConfig,
    SamplingConfig,
    SearchConfig,
)

CALLS_AN_EPISODE = 20  # k=4 of the writer, then k x W of the reviewer and of the refactorer


def play(heat: Heat) -> int:
    """Trains until the calls are made; an episode's three stages follow one another."""
    os.environ.setdefault("ANTHROPIC_API_KEY", "test")
    config = orchestry.RunConfig(
        task="relay",
        task_path=(Path(__file__).parents[1] / "server" / "tasks",),
        episodes=max(1, heat.calls // CALLS_AN_EPISODE),
        provider=ProviderConfig(name="anthropic", model=MODEL, base_url=heat.url),
        sampling=SamplingConfig(max_tokens=MAX_TOKENS),
        search=SearchConfig(concurrency=heat.concurrency),
        cache=CacheConfig(enabled=False),
        judge=JudgeConfig(enabled=False),
    )
    with tempfile.TemporaryDirectory() as folder:
        orchestry.train(config, run_dir=Path(folder) / "run", observer=None)
    return 3


if __name__ == "__main__":
    compete(play)
