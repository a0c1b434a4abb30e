"""Which provider a config and an environment come to, and what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.config import ProviderConfig
from orchestry.core.errors import ConfigError
from orchestry.models.gguf import MODEL
from orchestry.models.providers import open_provider

KEYS = {"ANTHROPIC_API_KEY": "sk-a", "OPENAI_API_KEY": "sk-o"}


def config(**fields: Any) -> ProviderConfig:
    return ProviderConfig.model_validate(fields)


def test_models_and_addresses_come_from_config_then_environment_then_default() -> None:
    environ = {
        **KEYS,
        "ANTHROPIC_MODEL": "from-env",
        "ANTHROPIC_BASE_URL": "http://env:1/",
        "OPENAI_MODEL": "o-env",
        "OPENAI_BASE_URL": "http://oenv:2/v1",
    }
    assert open_provider(config(name="anthropic"), 0, KEYS).model == "claude-haiku-5-5"
    claude = open_provider(config(name="anthropic"), 0, environ)
    assert (claude.model, claude.base_url) == ("from-env", "http://env:1")
    other = open_provider(config(name="openai"), 0, environ)
    assert (other.model, other.base_url) == ("o-env", "http://oenv:2/v1")
    own = open_provider(config(name="openai", model="x", base_url="http://c:3"), 0, environ)
    assert (own.model, own.base_url) == ("x", "http://c:3")


@pytest.mark.parametrize(
    ("fields", "environ", "says"),
    [
        ({"name": "anthropic"}, {}, "ANTHROPIC_API_KEY is not set"),
        ({"name": "anthropic"}, {"ANTHROPIC_API_KEY": "sk-ż\u200b"}, "copy the key again"),
        ({"name": "openai", "model": "m"}, {}, "OPENAI_API_KEY is not set"),
        ({"name": "openai", "model": "m"}, {}, "judge.provider.name"),
        ({"name": "openai"}, KEYS, "OPENAI_MODEL"),
        ({"name": "openai", "base_url": "localhost:80"}, KEYS, "provider.base_url is"),
        ({"name": "anthropic"}, {**KEYS, "ANTHROPIC_BASE_URL": "ftp://x"}, "ANTHROPIC_BASE_URL is"),
        ({"name": "anthropic"}, {**KEYS, "ANTHROPIC_BASE_URL": "http://[x"}, "ANTHROPIC_BASE_URL"),
        ({"name": "embedded", "model": "llama"}, {}, MODEL),
        ({"model": "claude-opus-5"}, {}, "ANTHROPIC_API_KEY is not set"),
        ({"model": "openai/gpt-4o-mini"}, {}, "OPENAI_API_KEY is not set"),
        ({}, {"OPENAI_API_KEY": "sk-o"}, "no model is named"),
        ({"model": "my-model"}, {}, "such as openai/my-model"),
        ({"name": "recorded"}, {}, "provider.recording"),
        ({"name": "recorded", "recording": "/nowhere"}, {}, "no recording at /nowhere"),
        ({"name": "fake", "fake": {"script": "/nowhere.jsonl"}}, {}, "provider.fake.script"),
    ],
)
def test_what_is_missing_is_named(
    fields: dict[str, Any], environ: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says.replace(".", r"\.")) as info:
        open_provider(config(**fields), 0, environ)
    assert "\n" not in str(info.value)
    assert "ż" not in str(info.value)


def test_a_local_server_needs_no_key() -> None:
    provider = open_provider(config(name="openai", model="m", base_url="http://h:1/v1"), 0, {})
    assert provider.model == "m"


def test_a_missing_sdk_is_named_with_its_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['anthropic'] = None\n"
        "from orchestry.core.config import ProviderConfig\n"
        "from orchestry.models.providers import open_provider\n"
        "open_provider(ProviderConfig(name='anthropic'), 0, {'ANTHROPIC_API_KEY': 'k'})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "orchestry-marl[anthropic]"' in done.stderr


def test_opening_imports_no_sdk() -> None:
    code = (
        "import sys\n"
        "from orchestry.core.config import ProviderConfig\n"
        "from orchestry.models.providers import open_provider\n"
        "environ = {'ANTHROPIC_API_KEY': 'k'}\n"
        "for name in ('anthropic', 'openai', 'embedded', 'fake'):\n"
        "    config = ProviderConfig(name=name, base_url='http://h', model=None)\n"
        "    open_provider(config, 0, {**environ, 'OPENAI_MODEL': 'm'})\n"
        "heavy = {'anthropic', 'openai', 'xllamacpp', 'aiohttp', 'httpx2'} & {*sys.modules}\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
