"""How a team answers and learns: by prompts or by weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestry.backends.base import Backend
from orchestry.core.config import RunConfig
from orchestry.core.errors import ConfigError
from orchestry.core.extensions import load
from orchestry.core.machine import check_first, launched
from orchestry.store.run import NO_TEXTS
from orchestry.task.base import BaseTask

if TYPE_CHECKING:
    from orchestry.backends.api.backend import ApiBackend
    from orchestry.backends.local.backend import LocalBackend

_API = "orchestry.backends.api.backend:ApiBackend"
_LOCAL = "orchestry.backends.local.backend:LocalBackend"
_TRAINED = "orchestry.backends.teams:TrainedBackend"
_WITH_TEAM = "orchestry.backends.teams:with_team"
"""Where they lie, as a run loads only what it needs."""


def plays_trained(config: RunConfig) -> bool:
    """Whether weights of this machine answer in backend api."""
    return config.backend == "api" and config.provider.name == "local"


def as_trained(config: RunConfig, folder: Path | None = None) -> RunConfig:
    """The config with the settings of the run that trained its team, where it has none of its own.
    A config without a trained team comes back as it is.

    `folder` is the run to continue, which has its own copy of the adapters. Raises ConfigError for
    a missing team, or one of another task.
    """
    if not plays_trained(config):
        return config
    found: RunConfig = load(_WITH_TEAM)(config, folder)
    return found


def backend_of(config: RunConfig) -> type[ApiBackend | LocalBackend]:
    """The backend of a config. Raises ConfigError for one that is none of this kind."""
    if config.backend == "ppo":
        raise ConfigError(f"no model is asked by backend ppo, {NO_TEXTS}")
    place = _LOCAL if config.backend == "local" else _TRAINED if plays_trained(config) else _API
    found: type[ApiBackend | LocalBackend] = load(place)
    return found


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
