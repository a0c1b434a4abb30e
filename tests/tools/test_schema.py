"""configs/schema.json says what the config says today, and accepts what a file may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import BeforeValidator

from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError
from orchestry.core.types import Frozen
from tools.defaults import EDITORS
from tools.schema import BRIEF, COMMAND, PAGE, page

SHIPPED = sorted(PAGE.parent.glob("*.yaml"))
RIGHT: list[dict[str, Any]] = [
    {"learn": {"group_size": "auto", "targets": "all-linear"}},
    {"ppo": {"steps": "10M", "pool_every": "500k", "evaluate_every": 1000}},
    {"recipe": {"steps": "search+magrpo"}, "agents": {"seat": {"plays": None}}},
    {"agents": {"coder": {"provider": "local:runs/trained"}}},
    {"agents": [{"role": "coder", "provider": "fake"}]},
    {"agents": {"coder": {"provider": {"name": "fake"}}, "seat": {"plays": "guard"}}},
    {"provider": {"name": "local:runs/trained"}, "behaviors": {"share": "auto"}},
    {"trackers": {"wandb": False}, "budget": {"usd": None}},
]
WRONG: list[dict[str, Any]] = [
    {"agents": {"coder": {"provider": "opnai"}}},
    {"ppo": {"steps": "many"}},
    {"serach": {}},
    {"search": {"k_samples": 0}},
    {"agents": [{"goal": "no role"}]},
    {"backend": "locl"},
]


@pytest.fixture(scope="module")
def schema() -> Any:
    found = json.loads(page())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def test_the_file_is_what_the_config_says_now() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        f"configs/schema.json is not what the config says now: run `{COMMAND}` and commit the file"
    )


@pytest.mark.parametrize("file", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs_name_it_and_fit_it(file: Path, schema: Any) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith(EDITORS)
    schema.validate(yaml.safe_load(text) or {})


def test_each_key_that_is_read_before_it_is_checked_has_its_brief_form() -> None:
    written = page()
    for model in Frozen.__subclasses__():
        if f"/{model.__name__}" not in written:
            continue
        for name, info in model.model_fields.items():
            read = any(isinstance(item, BeforeValidator) for item in info.metadata)
            key = (model.__name__, info.alias or name)
            schema = json.dumps(_schema(written, *key)) if read else ""
            assert not read or key in BRIEF or '"pattern"' in schema, key


def _schema(page: str, model: str, key: str) -> Any:
    found = json.loads(page)
    return found["$defs"].get(model, found)["properties"][key]


def test_a_resolved_config_fits_it(schema: Any) -> None:
    schema.validate(yaml.safe_load(RunConfig().to_yaml()))


@pytest.mark.parametrize("data", RIGHT)
def test_it_takes_what_a_config_takes(data: dict[str, Any], schema: Any) -> None:
    validate(data)
    schema.validate(data)


@pytest.mark.parametrize("data", WRONG)
def test_it_refuses_what_a_config_refuses(data: dict[str, Any], schema: Any) -> None:
    with pytest.raises(ConfigError):
        validate(data)
    assert not schema.is_valid(data)
