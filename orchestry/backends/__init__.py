"""How a team answers and learns: by prompts or by weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestry.backends.api.backend import ApiBackend
from orchestry.backends.base import Backend
from orchestry.backends.local.backend import LocalBackend
from orchestry.backends.teams import TrainedBackend, plays_trained
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.machine import check_first, launched
from orchestry.store.run import NO_TEXTS
from orchestry.task.base import BaseTask


def backend_of(config: RunConfig) -> type[ApiBackend | LocalBackend]:
    """The backend of a config. Raises ConfigError for one that is none of this kind."""
    if config.backend == "ppo":
        raise ConfigError(f"no model is asked by backend ppo, {NO_TEXTS}")
    if config.backend == "local":
        return LocalBackend
    return TrainedBackend if plays_trained(config) else ApiBackend


def open_backend(
    config: RunConfig,
    task: BaseTask[Any],
    environ: Mapping[str, str] = os.environ,
    need_key: bool = True,
    folder: Path | None = None,
) -> Backend:
    """The backend that the config names, checked but not yet opened: nothing is spent.

    `folder` holds the run to continue, and copies of its starting files.

    If the config leaves it open whether to judge, task and model decide. Without `need_key` a
    missing API key is no error, but no call can be made. Raises ConfigError for a missing key,
    package, price or model, and for several processes with a backend other than local.
    """
    here = launched(environ)
    processes = max(here.processes, config.ranks)
    if config.backend != "local" and processes > 1:
        raise ConfigError(
            f"backend {config.backend} takes one process, and {processes} were asked for: leave out"
            " ranks and `accelerate launch`; search.concurrency says how many calls are under way "
            "at once"
        )
    check_first(here)
    return backend_of(config)(config, task, environ, need_key, folder)
