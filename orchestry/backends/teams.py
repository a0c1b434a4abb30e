"""Weights of this machine in backend api: a trained team, from which search and prompts go on, or
an untrained base.

Here the two backends meet, which know nothing of each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchestry.backends.api.backend import ApiBackend
from orchestry.backends.base import Opening
from orchestry.backends.library import read_library, to_yaml
from orchestry.backends.local.settings import TEMPERATURE
from orchestry.backends.local.weights import START, Team, TrainedWeights, run_of, team_of
from orchestry.backends.prompted import KEPT
from orchestry.core.choices import UNWRITTEN
from orchestry.core.config import ProviderConfig, RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import merge
from orchestry.core.types import Provider
from orchestry.store import journal
from orchestry.store.run import Run, Store
from orchestry.task.base import BaseTask

_TAKEN = ("task", "options", "weights", "baseline", "sampling", "agents", "learn")
"""What a run's team plays with, unless the config says otherwise."""
_LEFT = {"learn": ("from", "roles", "vllm_url"), "agents": ("model", "provider", "frozen")}
"""Of these sections, the keys that say where the weights come from and who draws."""


def with_team(config: RunConfig, folder: Path | None) -> RunConfig:
    """See backends.as_trained."""
    if config.provider.team is None:
        if config.provider.model is None:
            raise ConfigError(
                "provider local answers with weights of this machine: name the run of a trained "
                "team, --provider local:RUN, or an untrained base, --provider local --model "
                "qwen2.5-coder-0.5b"
            )
        return validate(merge({"sampling": {"temperature": TEMPERATURE}}, config.plain()))
    place = config.provider.team.expanduser().absolute()
    if folder is not None and (folder / START).is_dir():
        place = folder.absolute() / START
    team, own = team_of(place), config.plain()
    taken = _settings(run_of(place), {"learn": team.sizes})
    if own.get("behaviors", {}).get("from") is not None:
        taken.pop("behaviors", None)
    if "task" in taken and own.get("task", taken["task"]) != taken["task"]:
        raise ConfigError(
            f"provider local: {place} was trained on {taken['task']}, and this run is of "
            f"{own['task']}: leave out --task, or give a team of {own['task']}"
        )
    here = {"provider": {**own["provider"], "team": str(team.folder)}}
    return validate(merge(merge(taken, own), here))


def _settings(run: Run | None, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings to take over, as plain data."""
    found: dict[str, Any] = {"sampling": {"temperature": TEMPERATURE}}
    if run is not None and run.config.get("backend") == "local":
        found = {key: run.config[key] for key in _TAKEN if key in run.config}
        found["learn"] = _without("learn", found.get("learn", {}))
        agents = found.get("agents", {})
        if (run.folder / KEPT).is_file():  # the prompts that the weights learned with
            found["behaviors"] = {"from": str((run.folder / KEPT).absolute())}
        found["agents"] = {role: _without("agents", own) for role, own in agents.items()}
    return merge(found, sizes)


def _without(section: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key not in _LEFT[section]}


def check_critics(asked: RunConfig, backend: ApiBackend) -> None:
    """Raises ConfigError if a config asks the weights that answer, or what stands in for them, to
    judge or to write behaviours. What it leaves open, weights do not do."""
    behaviors = asked.behaviors
    writes = behaviors.enabled and set(behaviors.propose or ()) - {*UNWRITTEN}
    for applies, provider, fix in (
        (
            asked.judge.enabled,
            backend.bench.provider,
            "can't judge: name another provider in judge.provider.name, or set judge.enabled=false",
        ),
        (
            writes,
            backend.author.provider,
            "can't write behaviours: name another provider in behaviors.provider.name, or set "
            "behaviors.propose=[examples,gold,feedback]",
        ),
    ):
        if applies and provider is backend.provider:
            raise ConfigError(f"the weights that answer {fix}")


class TrainedBackend(ApiBackend):
    """Backend api over the weights that backend local trained."""

    provider: TrainedWeights

    def __init__(
        self,
        config: RunConfig,
        task: BaseTask[Any],
        environ: Mapping[str, str],
        need_key: bool,
        folder: Path | None,
    ) -> None:
        super().__init__(config, task, environ, need_key, folder)
        check_critics(config, self)

    def _opened(
        self,
        named: ProviderConfig,
        config: RunConfig,
        task: BaseTask[Any],
        environ: Mapping[str, str],
    ) -> Provider:
        """See ApiBackend: the weights. Raises ConfigError if they lack an agent, or changed."""
        team = team_of(named.team) if named.team else Team.untrained(str(named.model))
        agents = [spec.role for spec in task.agents]
        own = {role for role, agent in config.agents.items() if agent.provider}
        roles = [role for role in agents if role not in own]
        if lacking := team.lacks(
            [role for role in roles if role not in (config.learn.roles or {})]
        ):
            raise ConfigError(
                f"provider local: {team.folder} has adapters of {', '.join(team.adapters)}, and "
                f"none of {', '.join(lacking)} of task {task.name}: give a team with these agents, "
                f"or another provider in agents.{lacking[0]}.provider"
            )
        if named.model not in (None, team.name):
            raise ConfigError(
                f"provider local: {team.folder} holds {team.name}, and provider.model is "
                f"{named.model}: leave out provider.model, or put the adapters back that it names"
            )
        return TrainedWeights(team, roles, config.learn, config.seed)

    def _knows(self, model: str) -> bool:
        """See ApiBackend: also the base, under whose name backend local keeps the library that its
        weights learned with."""
        return super()._knows(model) or model in self.provider.bases

    def _start_text(self) -> str | None:
        """See ApiBackend: under this team's name."""
        source = self.config.behaviors.source
        if source is None or not self._knows((library := read_library(source)).model):
            return None
        return to_yaml(library.model_copy(update={"model": self.provider.model}))

    @asynccontextmanager
    async def open(self, on: Opening) -> AsyncIterator[None]:
        """See Backend."""
        self.provider.warn = on.warn
        async with super().open(on):
            yield

    def kept_config(self, store: Store) -> RunConfig:
        """See Backend: with the run's own copy of the adapters. What lies in a run already, such as
        its evaluation, uses that run's copy."""
        config, kept = super().kept_config(store), store.folder.absolute() / START
        source = self.provider.team.folder
        if not self.provider.team.digest:
            return config
        if source.name == START and source.parent in store.folder.absolute().parents:
            return config
        if source != kept:
            self.provider.team.copy(kept)
        provider = config.provider.model_copy(update={"team": kept})
        return config.model_copy(update={"provider": provider})

    @classmethod
    def as_left(cls, source: Run, learned: journal.Learned | None, folder: Path) -> dict[str, Any]:
        """See Backend: with the run's own copy of the adapters, if it has any."""
        if not (source.folder / START).is_dir():
            return super().as_left(source, learned, folder)
        team = {"provider": {"team": str(source.folder.absolute() / START)}}
        return {**super().as_left(source, learned, folder), **team}
