"""Who answers: the provider that a model's name names, else the one that the environment has a key
or an address for.

`openai/gpt-4o-mini`, `anthropic/...`, `ollama/...` and `embedded/...` name their provider; so do
the plain names of Claude's and OpenAI's own models, and GGUF files. A provider that the config
names takes a model's name as it is, since servers have names with slashes too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from orchestry.core.config import (
    AgentConfig,
    BehaviorsConfig,
    JudgeConfig,
    PriceConfig,
    ProviderConfig,
    RunConfig,
)
from orchestry.core.errors import ConfigError
from orchestry.core.secrets import REFUSED
from orchestry.models.gguf import KNOWN, MODEL, gguf

_Asks = TypeVar("_Asks", AgentConfig, BehaviorsConfig, JudgeConfig)
PREFIXES = ("anthropic", "openai", "ollama", "embedded")
OLLAMA = "OLLAMA_HOST"
"""Ollama's own variable for its address."""
_OLLAMA_PORT = 11434
_CLAUDE = "ANTHROPIC_API_KEY"
_OWN_NAMES = {
    "anthropic": re.compile(r"claude-"),
    "openai": re.compile(r"(ft:)?(gpt-(?!oss)|chatgpt-|o\d(-|$))"),
}
_EMBEDDED = {MODEL, *(one.name for one in KNOWN)}
_HOSTS = {"anthropic": "api.anthropic.com", "openai": "api.openai.com"}
_FREE = PriceConfig(input=0.0, output=0.0)
_ON_THIS_MACHINE = "--provider embedded is free, on this machine"


def vendor_of(model: str | None) -> tuple[str, str | None]:
    """The provider that a model's name names, and the model's name there. '' where it names none.

    >>> vendor_of("openai/gpt-4o-mini")
    ('openai', 'gpt-4o-mini')
    >>> vendor_of("claude-haiku-5-5")
    ('anthropic', 'claude-haiku-5-5')
    >>> vendor_of("openai/own.gguf"), vendor_of("Qwen/Qwen2.5-7B")
    (('embedded', 'openai/own.gguf'), ('', 'Qwen/Qwen2.5-7B'))
    """
    if not model:
        return "", None
    prefix, _, rest = model.partition("/")
    file = model.lower().endswith(".gguf")
    splits = not file or (prefix == "embedded" and not Path(model).exists())
    if splits and prefix != model and prefix.lower() in PREFIXES:
        return prefix.lower(), rest or None
    if file or model in _EMBEDDED:
        return "embedded", model
    return next((name for name, form in _OWN_NAMES.items() if form.match(model)), ""), model


def chosen(asked: ProviderConfig, environ: Mapping[str, str]) -> tuple[str, ProviderConfig, str]:
    """Who answers by these settings, the settings with its name and the model's name there, and a
    line that says so if the environment decided.

    Raises ConfigError if that leaves the model open, or fits no model of that name.
    """
    if asked.name != "auto":
        return asked.name, asked, ""
    (vendor, model), why = vendor_of(asked.model), ""
    if not vendor:
        vendor, why = _by_environment(asked, environ)
    return vendor, _answered_by(vendor, asked, model, environ), why


def by_names(
    config: RunConfig, environ: Mapping[str, str], roles: Sequence[str] = ()
) -> tuple[RunConfig, str]:
    """The config with the providers that the names of its models name, and the line of `chosen`.

    If each of the `roles` has its own provider and `provider` is left out, the run's provider is
    the first agent's: it names the run, and judges.
    """
    if (first := _first_agents(config, environ, roles)) is not None:
        vendor, provider, why = "", first, ""
    else:
        vendor, provider, why = chosen(config.provider, environ)
    changes: dict[str, Any] = {"provider": provider, "prices": _prices(config)}
    if not _takes_any(config.provider, environ):
        config = critics_by_names(config, environ, vendor)
        changes["agents"] = {
            role: _agent(own, vendor, environ) for role, own in config.agents.items()
        }
    return config.model_copy(update=changes), why


def critics_by_names(config: RunConfig, environ: Mapping[str, str], vendor: str = "") -> RunConfig:
    """The config with the providers that the names of the judge's and the author's models name. One
    of the run's own `vendor` is asked as the run asks it."""
    found: dict[str, Any] = {"prices": _prices(config)}
    for section, part in (("judge", config.judge), ("behaviors", config.behaviors)):
        if (asked := part.provider) is None or asked.name != "auto":
            continue
        named, model = vendor_of(asked.model)
        if named in ("", vendor):
            asked = asked.model_copy(update={"model": model})
        else:
            asked = _answered_by(named, asked, model, environ)
        found[section] = part.model_copy(update={"provider": asked})
    return config.model_copy(update=found)


def as_the_run(config: RunConfig, name: str) -> RunConfig:
    """The config in which judge, author and agents have what they leave out of the run's provider,
    which has that name: so a resumed run asks them in the same way."""

    def whole(part: _Asks) -> _Asks:
        own = part.provider and named(part.provider, config.provider, name)
        return part.model_copy(update={"provider": own}) if own else part

    changes = {"judge": whole(config.judge), "behaviors": whole(config.behaviors)}
    agents = {role: whole(own) for role, own in config.agents.items()}
    return config.model_copy(update={**changes, "agents": agents})


def named(asked: ProviderConfig, runs: ProviderConfig, name: str) -> ProviderConfig:
    """The provider of a judge or an agent; if it names none, the run's own, at the same address and
    asked in the same way."""
    if asked.name != "auto":
        return asked
    changes = {"name": name, "base_url": asked.base_url or runs.base_url}
    same = {"extra_body", "rename", "headers", "system"} - asked.model_fields_set
    return asked.model_copy(update=changes | {name: getattr(runs, name) for name in same})


def _first_agents(
    config: RunConfig, environ: Mapping[str, str], roles: Sequence[str]
) -> ProviderConfig | None:
    """The first agent's provider, if each has its own and the config names none for the run."""
    own = [_agent(config.agents.get(role, AgentConfig()), "", environ) for role in roles]
    asked = [agent.provider for agent in own if agent.provider and agent.provider.name != "auto"]
    if config.provider != ProviderConfig() or not own or len(asked) < len(own):
        return None
    return asked[0].model_copy(update={"model": own[0].model or asked[0].model})


def _agent(own: AgentConfig, vendor: str, environ: Mapping[str, str]) -> AgentConfig:
    """An agent with the provider that its model's name names, if it is another than the run's."""
    asked = own.provider or ProviderConfig()
    named, model = vendor_of(own.model or asked.model)
    if asked.name != "auto" or not named:
        return own
    if named != vendor:
        asked = _answered_by(named, asked, model, environ)
        return own.model_copy(update={"model": model, "provider": asked})
    return own.model_copy(update={"model": model})


def _answered_by(
    vendor: str, asked: ProviderConfig, model: str | None, environ: Mapping[str, str]
) -> ProviderConfig:
    changes = {"name": vendor, "model": model}
    if vendor == "ollama":
        changes |= {"name": "openai", "base_url": asked.base_url or ollama(environ)}
    return asked.model_copy(update=changes)


def ollama(environ: Mapping[str, str]) -> str:
    """The address of Ollama's chat completions.

    >>> ollama({}), ollama({"OLLAMA_HOST": "0.0.0.0:8080"})
    ('http://127.0.0.1:11434/v1', 'http://127.0.0.1:8080/v1')
    """
    given = environ.get(OLLAMA, "").strip().rstrip("/")
    if "://" in given:
        return f"{given}/v1"
    place = given if re.search(r":\d+$", given) else f"{given}:{_OLLAMA_PORT}"
    here = re.sub(r"^(0\.0\.0\.0)?(?=:)", "127.0.0.1", place)  # what a server binds, no address
    return f"http://{here}/v1"


def _by_environment(asked: ProviderConfig, environ: Mapping[str, str]) -> tuple[str, str]:
    """Who answers where no name says it, and why."""
    held = [name for name in environ if environ[name].strip()]
    known: tuple[str, ...] = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    others = [name for name in known if name in held]
    if _CLAUDE in held:
        too = f"; {' and '.join(others)} too: --provider openai takes that" if others else ""
        return "anthropic", f"{_CLAUDE} is set: using Claude (paid, within the budget){too}"
    others += [name for name in (f"{REFUSED}OPENAI_BASE_URL", "OPENAI_MODEL") if name in held]
    if asked.base_url or others:
        why = others[0].removeprefix(REFUSED) if others else "provider.base_url"
        if not asked.model and "OPENAI_MODEL" not in held:
            raise ConfigError(
                f"{why} is set, so OpenAI's API answers, and no model is named: give one with "
                f"--model openai/NAME or OPENAI_MODEL; {_ON_THIS_MACHINE}"
            )
        return "openai", f"{why} is set: using OpenAI's API (within the budget)"
    if "ANTHROPIC_MODEL" in held:
        return "anthropic", ""
    if asked.model:
        _refuse(asked.model, environ)
    return "embedded", (
        "no ANTHROPIC_API_KEY: using the embedded SmolLM2-135M (free, on this machine); set it to "
        "use Claude, or OPENAI_API_KEY to use OpenAI's API"
    )


def _refuse(model: str, environ: Mapping[str, str]) -> None:
    try:
        gguf(model, environ)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; for a served one, name its provider, such as openai/{model}, or "
            "set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL"
        ) from None


def _takes_any(asked: ProviderConfig, environ: Mapping[str, str]) -> bool:
    """Whether the run's provider, which the config names, takes any model's name: a script, a
    recording, or a server that is not the vendor's own."""
    if asked.name in ("fake", "recorded"):
        return True
    if asked.name not in _HOSTS:
        return False
    url = asked.base_url or environ.get(f"{asked.name.upper()}_BASE_URL", "").strip()
    return bool(url) and urlsplit(url).hostname != _HOSTS[asked.name]


def _prices(config: RunConfig) -> Mapping[str, PriceConfig]:
    """The prices also under the names that models have at their provider. Ollama's are free."""
    own = config.agents.values()
    asked = [config.provider, config.judge.provider, config.behaviors.provider]
    asked += [agent.provider for agent in own]
    models = [one.model for one in asked if one] + [agent.model for agent in own]
    found = dict(config.prices)
    for model in filter(None, models):
        vendor, name = vendor_of(model)
        price = found.get(model) or (_FREE if vendor == "ollama" else None)
        if name and price is not None:
            found.setdefault(name, price)
    return found
