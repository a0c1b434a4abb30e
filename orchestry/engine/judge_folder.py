"""The config of a check on disk, so that one directory never mixes two judges.

It is called check.yaml: a directory with a config.yaml is a run, which `orchestry resume` would
play on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from orchestry.core.config import RunConfig, read_yaml
from orchestry.core.errors import ConfigError
from orchestry.store.run import Store

NAME = "check.yaml"
FREE = ("budget", "episodes", "search", "retry", "cache", "allow_unsafe_code")
"""What may change when a check goes on: it decides no question."""


def keep_config(store: Store, config: RunConfig) -> None:
    """Writes the config of a new check, or compares it with the one that is gone on with.

    Raises ConfigError for a directory of something else, and for one of another check.
    """
    path = store.folder / NAME
    if not path.exists() and store.events:
        raise ConfigError(f"{store.folder} holds a run, no judge check: choose another --run-dir")
    if path.exists():
        before, now = _leaves(read_yaml(path)), _leaves(yaml.safe_load(config.to_yaml()))
        for key in sorted(before.keys() | now.keys()):
            if key.split(".")[0] not in FREE and before.get(key) != now.get(key):
                raise ConfigError(
                    f"{store.folder} holds a check with {key}={before.get(key)}, not "
                    f"{now.get(key)}: give the settings of then, or choose another --run-dir"
                )
    store.write(NAME, config.to_yaml())


def _leaves(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys, dotted."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat |= _leaves(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
