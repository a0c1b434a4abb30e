"""The api backend: a team of prompts over a served model, asked through the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from orchestry.config import RunConfig
from orchestry.errors import ConfigError, unknown
from orchestry.providers import open_provider, resolve_name
from orchestry.rollout import Member
from orchestry.services.gateway import Gateway, open_gateway
from orchestry.services.prices import price_table
from orchestry.store import Store
from orchestry.task import BaseTask
from orchestry.types import AgentSpec, Provider

NO_KEYS = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "none-needed-for-a-dry-run")


class ApiBackend:
    """Provider and gateway of one run. Built: checked, nothing spent. `open`: calls can be made."""

    gateway: Gateway

    def __init__(self, config: RunConfig, environ: Mapping[str, str], need_key: bool) -> None:
        name, note = resolve_name(config.provider, environ)
        self.notes = [note] if note else []
        named = config.provider.model_copy(update={"name": name})
        if not need_key:
            environ = {**NO_KEYS, **environ}
        self.provider = open_provider(named, config.seed, environ)
        self.config = _settled(config, name, self.provider)
        _check_temperatures(self.config)
        self.prices = price_table(self.provider, config)
        self._stack = AsyncExitStack()

    async def open(self, store: Store, on_warn: Callable[[str], None]) -> None:
        """Starts the provider, and the gateway with what the journal already paid for."""
        self.gateway = await self._stack.enter_async_context(
            open_gateway(
                self.config,
                self.provider,
                self.prices,
                store.journal,
                store.events,
                on_warn=on_warn,
            )
        )
        await self._stack.enter_async_context(self.provider)

    async def close(self) -> None:
        await self._stack.aclose()

    def team(self, task: BaseTask[Any]) -> dict[str, Member]:
        """The task's agents as this run asks them; raises ConfigError for a role it lacks."""
        roles = [spec.role for spec in task.agents]
        for role in self.config.agents:
            if role not in roles:
                raise ConfigError(unknown(f"agent of task {task.name}", role, roles))
        return {spec.role: self._member(spec) for spec in task.agents}

    def _member(self, spec: AgentSpec) -> Member:
        own, sampling = self.config.agents.get(spec.role), self.config.sampling
        prompt = own.system_prompt if own and own.system_prompt is not None else system_prompt(spec)
        return Member(
            role=spec.role,
            system_prompt=prompt,
            model=(own and own.model) or self.provider.model,
            max_tokens=(own and own.max_tokens) or sampling.max_tokens,
            temperature=own.temperature
            if own and own.temperature is not None
            else sampling.temperature,
            stop=sampling.stop,
        )


def _settled(config: RunConfig, name: str, provider: Provider) -> RunConfig:
    """The config with provider, model, address and paths as found.

    So a resume asks the same ones, from any folder. An address with a password stays in the
    environment.
    """
    asked, cache = config.provider, config.cache
    settled: dict[str, Any] = {"name": name, "model": provider.model}
    if name in ("anthropic", "openai") and not set("@?") & set(provider.base_url):
        settled["base_url"] = provider.base_url
    if asked.recording:
        settled["recording"] = asked.recording.absolute()
    if asked.fake.script:
        script = asked.fake.script.absolute()
        settled["fake"] = asked.fake.model_copy(update={"script": script})
    changed: dict[str, Any] = {"provider": asked.model_copy(update=settled)}
    if cache.dir:
        changed["cache"] = cache.model_copy(update={"dir": cache.dir.absolute()})
    changed["task_path"] = tuple(path.absolute() for path in config.task_path)
    return config.model_copy(update=changed)


def _check_temperatures(config: RunConfig) -> None:
    """Raises ConfigError for a temperature that no one would read."""
    set_ones = [config.sampling.temperature, *(own.temperature for own in config.agents.values())]
    if config.provider.name == "anthropic" and any(t is not None for t in set_ones):
        raise ConfigError(
            "Claude takes no temperature, and one is set in sampling or agents: remove it; its "
            "samples differ by an angle at the end of the prompt"
        )


def system_prompt(spec: AgentSpec) -> str:
    """The agent's own prompt, or one made of role and goal."""
    return spec.system_prompt or f"You are the {spec.role} of a team. {spec.goal}".strip()
