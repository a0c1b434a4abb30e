"""No secret is written: what a config, which goes to disk, may not hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestry.core.errors import ConfigError

_LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|pk)-[\w-]{12,}")


def looks_like_key(text: str) -> bool:
    """Whether a text may hold an API key, and so may be neither shown nor written."""
    return _LOOKS_LIKE_KEY.search(text) is not None


def refuse_secrets(value: Any, key: str = "") -> None:
    """Raises ConfigError for plain data that holds an API key, or a password in an address."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            refuse_secrets(str(name), key)
            refuse_secrets(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            refuse_secrets(inner, key)
    elif isinstance(value, str) and looks_like_key(value):
        raise ConfigError(
            f"config key '{key}' holds what looks like an API key: no config key takes one; "
            "export ANTHROPIC_API_KEY or OPENAI_API_KEY instead"
        )
    elif isinstance(value, str) and _is_address(key) and set("@?") & set(value):
        raise ConfigError(
            f"config key '{key}' holds a user, password or query, and would be written to disk: "
            "give the bare address"
        )


def _is_address(key: str) -> bool:
    return f".{key}".endswith(".provider.base_url")  # the run's provider, and the judge's
