"""Short runs of backend local on a tiny model with room for a task's real prompts."""

from __future__ import annotations

import json
from pathlib import Path

import orchestry
from orchestry.core.config import resolve
from orchestry.store.run import Run

ROOM = 4096
"""Tokens, here bytes, that the model takes; its positions are rotary, so it needs no training."""


def roomy_model(folder: Path) -> Path:
    """A tiny model with room for real prompts."""
    from tests.backends.local.tiny import tiny_folder

    model = tiny_folder(folder / "tiny")
    described = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**described, "max_position_embeddings": ROOM}))
    return model


def learned_run(folder: Path, *sets: str) -> Run:
    """Four episodes of groups of two, two updates, answers of 16 bytes."""
    given = (
        "backend=local",
        f"provider.model={roomy_model(folder)}",
        "episodes=4",
        "sampling.max_tokens=16",
        "budget.usd=5",
        "learn.threads=1",
        "learn.every=2",
        "learn.group_size=2",
        "learn.rank=4",
        "learn.alpha=8",
    )
    return orchestry.train(resolve([], [*given, *sets]), folder / "run")
