"""Which provider a model's name and an environment come to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestry.core.config import ProviderConfig, RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.models.names import by_names, chosen, critics_by_names, ollama, vendor_of

CLAUDE, OPENAI = "ANTHROPIC_API_KEY", "OPENAI_API_KEY"
KEYS = {CLAUDE: "sk-a", OPENAI: "sk-o"}
VARIABLES = (CLAUDE, OPENAI, "OPENAI_BASE_URL", "OPENAI_MODEL", "ANTHROPIC_MODEL")


def config(**fields: Any) -> ProviderConfig:
    return ProviderConfig.model_validate(fields)


def asked(raw: Mapping[str, Any], environ: Mapping[str, str], *roles: str) -> RunConfig:
    return by_names(validate(raw), environ, roles)[0]


def who(one: ProviderConfig | None) -> tuple[str, str | None]:
    assert one is not None
    return one.name, one.model


# --- the run's own ------------------------------------------------------------------------------


def test_auto_says_what_it_chose() -> None:
    assert chosen(config(), {CLAUDE: " "})[0] == "embedded"
    assert chosen(config(), {})[2].startswith("no ANTHROPIC_API_KEY: using the embedded SmolLM2")
    name, _, line = chosen(config(), KEYS)
    assert name == "anthropic"
    assert line.startswith("ANTHROPIC_API_KEY is set: using Claude (paid, within the budget)")
    assert "OPENAI_API_KEY too" in line
    name, _, line = chosen(config(model="m"), {"OPENAI_BASE_URL": "http://h/v1"})
    assert name == "openai"
    assert line.startswith("OPENAI_BASE_URL is set: using OpenAI's API")
    assert chosen(config(name="fake"), KEYS) == ("fake", config(name="fake"), "")


@pytest.mark.parametrize(
    ("model", "name", "there"),
    [
        ("openai/gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("openai/openai/gpt-oss-120b", "openai", "openai/gpt-oss-120b"),
        ("anthropic/claude-haiku-5-5", "anthropic", "claude-haiku-5-5"),
        ("embedded/qwen2.5-1.5b", "embedded", "qwen2.5-1.5b"),
        ("embedded/owner/name:file.gguf", "embedded", "owner/name:file.gguf"),
        ("claude-haiku-5-5", "anthropic", "claude-haiku-5-5"),
        ("gpt-4.1-nano", "openai", "gpt-4.1-nano"),
        ("o4-mini", "openai", "o4-mini"),
        ("qwen2.5-1.5b", "embedded", "qwen2.5-1.5b"),
        ("qwen2.5-coder-0.5b", "embedded", "qwen2.5-coder-0.5b"),
        ("openai/own.gguf", "embedded", "openai/own.gguf"),
        ("openai/repo:file.Q4.GGUF", "embedded", "openai/repo:file.Q4.GGUF"),
    ],
)
@pytest.mark.parametrize("environ", [{}, KEYS, {**KEYS, "OPENAI_BASE_URL": "http://h:1/v1"}])
def test_a_models_name_names_its_provider(
    model: str, name: str, there: str, environ: dict[str, str]
) -> None:
    assert who(chosen(config(model=model), environ)[1]) == (name, there)


def test_a_file_in_a_folder_of_a_providers_name_is_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("embedded").mkdir()
    Path("embedded/own.gguf").write_bytes(b"GGUF")
    assert vendor_of("embedded/own.gguf") == ("embedded", "embedded/own.gguf")
    assert vendor_of("embedded/other.gguf") == ("embedded", "other.gguf")


def test_ollama_is_asked_at_its_own_address_free_of_charge() -> None:
    found = asked({"provider": {"model": "ollama/llama3:8b"}}, KEYS)
    assert who(found.provider) == ("openai", "llama3:8b")
    assert found.provider.base_url == "http://127.0.0.1:11434/v1"
    assert found.prices["llama3:8b"].output == 0
    there = asked({"provider": {"model": "ollama/x", "base_url": "http://box:1/v1"}}, {})
    assert there.provider.base_url == "http://box:1/v1"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("box", "http://box:11434/v1"),
        (":99", "http://127.0.0.1:99/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("[::1]:99", "http://[::1]:99/v1"),
        ("https://box.example/", "https://box.example/v1"),
    ],
)
def test_ollamas_address_is_that_of_its_own_variable(given: str, url: str) -> None:
    assert ollama({"OLLAMA_HOST": given}) == url


def test_a_price_under_the_whole_name_is_the_models() -> None:
    price = {"openai/own": {"input": 1, "output": 2}}
    found = asked({"provider": {"model": "openai/own"}, "prices": price}, {})
    assert found.prices["own"].output == 2
    own = {**price, "own": {"input": 3, "output": 4}}
    assert asked({"provider": {"model": "openai/own"}, "prices": own}, {}).prices["own"].output == 4


names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.:", min_size=1, max_size=12)
prefixes = st.sampled_from(["", "openai/", "anthropic/", "ollama/", "meta-llama/", "Qwen/"])
models = st.none() | st.builds(str.__add__, prefixes, names | st.just("claude-x") | st.just("o3"))
environments = st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(["", " ", "x", "y"]))


@given(models, environments)
def test_a_vendor_that_is_named_is_never_the_embedded_model(
    model: str | None, environ: dict[str, str]
) -> None:
    held = [name for name in environ if environ[name].strip()]
    assume(vendor_of(model)[0] != "embedded")
    try:
        vendor, found, _ = chosen(config(model=model), environ)
    except ConfigError:  # says what is missing
        return
    if model or held:
        assert vendor != "embedded"
    if model and model.partition("/")[0] in ("openai", "anthropic", "ollama"):
        assert (vendor, found.model) == (model.partition("/")[0], model.partition("/")[2])
    elif model:
        assert found.model == model
    elif CLAUDE in held:
        assert vendor == "anthropic"


@given(models, environments, st.sampled_from(["anthropic", "openai", "embedded", "fake"]))
def test_a_provider_that_is_named_takes_the_name_as_it_is(
    model: str | None, environ: dict[str, str], name: str
) -> None:
    given = config(name=name, model=model)
    assert chosen(given, environ) == (name, given, "")


# --- judge, author, agents ----------------------------------------------------------------------

MIXED = {
    "judge": {"provider": {"model": "anthropic/claude-haiku-5-5"}},
    "behaviors": {"provider": {"model": "embedded/qwen2.5-1.5b"}},
    "agents": {"writer": {"model": "openai/gpt-4o"}, "reviewer": {"model": "ollama/llama3"}},
}


@pytest.mark.parametrize(
    "provider",
    [
        {"model": "openai/gpt-4o-mini"},
        {"name": "openai", "model": "gpt-4o-mini"},
        {"name": "embedded"},
        {"name": "anthropic"},
        {},
    ],
)
def test_models_of_judge_author_and_agents_name_their_provider(provider: dict[str, str]) -> None:
    found = asked({**MIXED, "provider": provider}, KEYS, "writer", "reviewer")
    runs = found.provider.name
    for part, vendor, model in (
        (found.behaviors, "embedded", "qwen2.5-1.5b"),
        (found.judge, "anthropic", "claude-haiku-5-5"),
    ):  # auto: as the run itself asks
        assert who(part.provider) == ("auto" if runs == vendor else vendor, model)
    writer, reviewer = found.agents["writer"], found.agents["reviewer"]
    assert writer.model == "gpt-4o"
    assert (writer.provider and writer.provider.name) == (
        None if runs == "openai" and provider else "openai"
    )
    assert who(reviewer.provider) == ("openai", "llama3")
    assert reviewer.provider
    assert reviewer.provider.base_url == ollama({})


def test_without_a_provider_of_its_own_the_run_is_the_first_agents() -> None:
    found = asked(MIXED, {}, "writer", "reviewer")
    assert who(found.provider) == ("openai", "gpt-4o")


@pytest.mark.parametrize(
    "provider",
    [
        {"name": "openai", "base_url": "http://127.0.0.1:1/v1"},
        {"name": "anthropic", "base_url": "https://openrouter.example/api"},
        {"name": "fake"},
        {"name": "recorded"},
    ],
)
def test_a_named_server_takes_all_names_as_they_are(provider: dict[str, str]) -> None:
    found = asked({**MIXED, "provider": provider}, KEYS, "writer", "reviewer")
    assert who(found.judge.provider) == ("auto", "anthropic/claude-haiku-5-5")
    assert found.agents["writer"].model == "openai/gpt-4o"
    assert found.agents["writer"].provider is None


def test_bases_of_backend_local_are_not_split() -> None:
    raw = {
        **MIXED,
        "backend": "local",
        "provider": {"model": "openai/gpt-oss-20b"},
    }
    found = critics_by_names(validate(raw), {})
    assert found.provider.model == "openai/gpt-oss-20b"
    assert found.agents["writer"].model == "openai/gpt-4o"
    assert who(found.judge.provider) == ("anthropic", "claude-haiku-5-5")


@given(models, models, environments, st.booleans())
def test_names_are_read_once(
    model: str | None, other: str | None, environ: dict[str, str], named: bool
) -> None:
    """A run's config.yaml, which has the providers that were found, names them again."""
    own = {"provider": "openai"} if named else {}
    raw = {"provider": {"model": model}, "agents": {"writer": {"model": other, **own}}}
    try:
        found = asked(raw, environ, "writer")
    except ConfigError:
        return
    again = asked(found.plain(), environ, "writer")
    assert again.provider == found.provider
    if found.agents["writer"].provider is not None:
        assert again.agents == found.agents
