"""How a team is asked, and later how it learns: one file a backend."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orchestry.backends.api import ApiBackend
from orchestry.config import RunConfig
from orchestry.errors import ConfigError


def open_backend(
    config: RunConfig, environ: Mapping[str, str] = os.environ, need_key: bool = True
) -> ApiBackend:
    """The backend that the config names, checked but not yet opened: nothing is spent.

    Without `need_key` a missing API key is no error; no call can be made then. Raises ConfigError
    for a missing key, package, price or model.
    """
    if config.backend == "local":
        raise ConfigError(
            "backend 'local' (LoRA training) is not in this release: use --backend api"
        )
    return ApiBackend(config, environ, need_key)
