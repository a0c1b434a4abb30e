"""`open_provider` chooses a provider from the config and the environment; each vendor has its own
file.

Nothing here uses the network or imports an SDK; entering the provider does.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from orchestry.core.asked import filled, thinking_budget
from orchestry.core.config import ProviderConfig
from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError
from orchestry.core.secrets import REFUSED, looks_like_key
from orchestry.core.types import Provider
from orchestry.models.dialect import Dialect
from orchestry.models.names import chosen


def open_provider(config: ProviderConfig, seed: int, environ: Mapping[str, str]) -> Provider:
    """The configured provider, to be entered with `async with`.

    Raises ConfigError for a missing key, model, SDK, recording or script, before anything runs.
    """
    _, config, _ = chosen(config, environ)
    name = config.name
    asked = {"extra_body": config.extra_body, "rename": config.rename, "headers": config.headers}
    if name not in ("anthropic", "openai", "recorded") and (odd := [n for n in asked if asked[n]]):
        raise ConfigError(
            f"provider.{odd[0]} is for a server, not for provider {name}: leave it out"
        )
    if name == "anthropic":
        return _anthropic(config, environ)
    if name == "openai":
        return _openai(config, environ)
    if name == "embedded":
        return _embedded(config, environ)
    if name == "recorded":
        return _recorded(config)
    if name == "local":
        raise ConfigError(
            "trained weights answer as a whole team, in backend api (--provider local:RUN): they "
            "can't judge, write behaviours or answer for a single agent: name another provider"
        )
    from orchestry.models.fake import DEFAULT_MODEL, FakeProvider

    return FakeProvider(config.fake, seed, config.model or DEFAULT_MODEL)


def _anthropic(config: ProviderConfig, environ: Mapping[str, str]) -> Provider:
    from orchestry.models.anthropic import DEFAULT_MODEL, VENDOR_URL, AnthropicProvider
    from orchestry.models.http import Endpoint

    _need("anthropic", "anthropic", "aiohttp")
    endpoint = Endpoint(
        vendor="anthropic",
        url=_url(config, environ, "ANTHROPIC_BASE_URL", VENDOR_URL),
        key_variable="ANTHROPIC_API_KEY",
        url_variable="ANTHROPIC_BASE_URL",
        timeout_s=config.timeout_s,
        key=_key(environ, "ANTHROPIC_API_KEY"),
        headers=filled(config.headers, environ),
    )
    if config.rename or config.system == "user":
        raise ConfigError(
            "provider.rename and provider.system are for provider openai: leave them out"
        )
    model = config.model or environ.get("ANTHROPIC_MODEL") or DEFAULT_MODEL
    return AnthropicProvider(endpoint, model, Dialect.of(config))


def _openai(config: ProviderConfig, environ: Mapping[str, str]) -> Provider:
    from orchestry.models.http import Endpoint
    from orchestry.models.openai import VENDOR_URL, OpenAIProvider, is_vendor

    _need("openai", "openai", "aiohttp")
    if thinking_budget(config.extra_body):
        raise ConfigError(
            "provider.extra_body.thinking.budget_tokens is for Claude, where thoughts are part of "
            "max_tokens: leave it out"
        )
    url = _url(config, environ, "OPENAI_BASE_URL", VENDOR_URL)
    placeholder = None if is_vendor(url) else "none"  # local servers need no key
    endpoint = Endpoint(
        vendor="openai",
        url=url,
        key_variable="OPENAI_API_KEY",
        url_variable="OPENAI_BASE_URL",
        timeout_s=config.timeout_s,
        key=_key(environ, "OPENAI_API_KEY", placeholder),
        headers=filled(config.headers, environ),
    )
    model = config.model or environ.get("OPENAI_MODEL")
    if not model:
        raise ConfigError(
            "provider openai has no default model: name one with --model, provider.model (for a "
            "judge or author of its own judge.provider.model, behaviors.provider.model) or "
            "OPENAI_MODEL"
        )
    return OpenAIProvider(endpoint, model, Dialect.of(config), split_thoughts=config.split_thoughts)


def _embedded(config: ProviderConfig, environ: Mapping[str, str]) -> Provider:
    from orchestry.models.embedded import EmbeddedProvider
    from orchestry.models.gguf import MODEL, gguf

    _need("embedded", "xllamacpp", "openai", "aiohttp")
    return EmbeddedProvider(config.timeout_s, gguf(config.model or MODEL, environ))


def _recorded(config: ProviderConfig) -> Provider:
    from orchestry.models.recorded import RecordedProvider

    if config.recording is None:
        raise ConfigError("provider recorded replays a run: name it in provider.recording")
    return RecordedProvider(config.recording)


def _need(extra: str, *modules: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"provider {extra} needs {' and '.join(missing)}, not installed here: " + install(extra)
        )


def _key(environ: Mapping[str, str], variable: str, placeholder: str | None = None) -> str:
    key = environ.get(variable, "").strip() or placeholder
    if key is None:
        raise ConfigError(
            f"{variable} is not set: export it, or name another provider for a new run, or in "
            "judge.provider.name where the judge wants it: --provider embedded is free, on this "
            "machine"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{variable} holds a character that no key has: copy the key again")
    return key


def _url(config: ProviderConfig, environ: Mapping[str, str], variable: str, vendor_url: str) -> str:
    if not config.base_url and (why := environ.get(f"{REFUSED}{variable}")):
        raise ConfigError(why)
    url = (config.base_url or environ.get(variable, "").strip() or vendor_url).rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        where = "provider.base_url" if config.base_url else variable
        found = "" if set("@?") & set(url) or looks_like_key(url) else f" '{url}',"
        raise ConfigError(f"{where} is{found} no address: it takes http(s)://host[:port][/path]")
    return url
