"""How a team is asked, and later how it learns: one file a backend."""

from __future__ import annotations

from orchestry.backends.api import ApiBackend
from orchestry.config import RunConfig
from orchestry.errors import ConfigError


def open_backend(config: RunConfig) -> ApiBackend:
    """The backend that the config names, checked but not yet entered: nothing is spent.

    Raises ConfigError for a missing key, package, price or model.
    """
    if config.backend == "local":
        raise ConfigError(
            "backend 'local' (LoRA training) is not in this release: use --backend api"
        )
    return ApiBackend(config)
