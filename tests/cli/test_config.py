"""`orchestry config`: what a config comes to, where its values come from, and its schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from orchestry.core.config import resolve, validate
from tests.cli.support import CommandLine

FLAGS = ("--provider", "fake", "--set", "search.k_samples=3", "--set", "options={a: {b: 1}}")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 3\nsearch: {k_samples: 9, beam_width: 5}\nagents: [{role: poet}]\n")
    return file


def test_what_is_shown_is_the_config_itself(cli: CommandLine, mine: Path) -> None:
    shown = cli("config", "show", "--config", mine, *FLAGS)
    assert shown.code == 0
    wanted = resolve([mine], [FLAGS[3], FLAGS[5]], {"provider.name": "fake"})
    assert validate(yaml.safe_load(shown.out)) == wanted


def test_each_value_names_its_source(cli: CommandLine, mine: Path) -> None:
    shown = cli("config", "show", "--given", "--json", "--config", mine, *FLAGS)
    found = json.loads(shown.out)
    assert found["origins"] == {
        "options.a.b": "--set",
        "seed": str(mine),
        "provider.name": "--provider",
        "agents.poet.role": str(mine),
        "search.k_samples": "--set",
        "search.beam_width": str(mine),
    }
    assert found["config"]["search"] == {"k_samples": 3, "beam_width": 5}


def test_what_is_shown_is_read_back_whatever_it_holds(cli: CommandLine, tmp_path: Path) -> None:
    run = tmp_path / "trained"
    run.mkdir()
    (run / "journal.jsonl").write_text("")
    odd = tmp_path / "odd.yaml"
    odd.write_text('options: {"a.b": 1, c: "x\\n\\u202ey"}\n')
    for more in ((), ("--given",)):
        shown = cli("config", "show", "--config", odd, "--provider", f"local:{run}", *more)
        found = validate(yaml.safe_load(shown.out))
        assert found.options == {"a.b": 1, "c": "x\n\u202ey"}
        assert found.provider.team == run


def test_a_backends_own_file_is_named(cli: CommandLine) -> None:
    shown = cli("config", "show", "--backend", "local", "--given")
    (line,) = [line for line in shown.out.splitlines() if "learning_rate" in line]
    assert line.split("#")[1].strip().endswith("local.yaml")


def test_nobody_is_asked_to_trust_what_is_only_shown(cli: CommandLine, mine: Path) -> None:
    mine.write_text("provider: {name: openai, base_url: 'http://elsewhere.example/v1'}\n")
    assert cli("config", "show", "--config", mine).code == 0


def test_a_wrong_key_is_refused(cli: CommandLine) -> None:
    cli("config", "show", "--set", "serach.k_samples=3").failed(2, "'serach'", "'search'")


def test_the_schema_is_printed_as_it_ships(cli: CommandLine) -> None:
    shown = cli("config", "schema")
    assert json.loads(shown.out)["properties"]["episodes"]["minimum"] == 1
