"""What a resumed run may go on with otherwise than it began."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestry.errors import ConfigError

RESUMABLE = frozenset(
    {
        "budget",
        "episodes",
        "learn.device",
        "learn.gradient_checkpointing",
        "learn.keep",
        "learn.learning_rate",
        "learn.micro_tokens",
        "learn.vllm_url",
        "retry",
        "trackers",
    }
)
"""Keys, and sections as a whole: nothing that was played or learned so far depends on them."""


def check_changes(changes: Mapping[str, Any]) -> None:
    """Raises ConfigError for changes, nested like the config, of anything else."""
    for name, value in changes.items():
        keys = [f"{name}.{key}" for key in value] if isinstance(value, Mapping) else [name]
        for key in keys:
            if not {name, key} & RESUMABLE:
                raise ConfigError(
                    f"{key} can't be changed on a resume, since what was played and learned "
                    f"depends on it: begin another run with it (learn.from or behaviors.from take "
                    f"over what was learned); a resume takes {', '.join(sorted(RESUMABLE))}"
                )
