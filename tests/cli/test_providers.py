"""Who answers, from the command line: a model's name, or what the environment has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.support import TASKS, CommandLine, Reply, chat, message, served

WORDS = ("--task", "words", "--task-path", TASKS, "--episodes", "1", "--set", "cache.enabled=false")
PRICE = ("--set", "prices={own: {input: 1, output: 1}, other: {input: 1, output: 1}}")
SMALL = ("--set", "judge.enabled=false", "--set", "behaviors.enabled=false")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The models that a server of both APIs was asked for."""
    found = list[str]()

    def answer(number: int, body: dict[str, Any]) -> Reply:
        found.append(body["model"])
        return 200, message("word") if body["model"].startswith("claude") else chat("word")

    with served(answer) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OLLAMA_HOST", url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        yield found


def test_a_team_of_several_vendors_by_the_names_of_its_models(
    cli: CommandLine, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-this-user")
    claude = ("--set", "agents.reviewer.model=anthropic/claude-haiku-5-5")
    run = ("run", *WORDS, *PRICE, *SMALL, "--json", "--run-dir", tmp_path / "run")
    found = cli(*run, "--model", "openai/own", *claude)
    assert found.code == 0, found
    assert {*asked} == {"own", "claude-haiku-5-5"}
    said = json.loads(found.out)
    assert (said["provider"], said["model"]) == ("openai", "own")
    kept = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (kept["provider"]["name"], kept["provider"]["model"]) == ("openai", "own")
    assert kept["agents"]["reviewer"]["provider"]["name"] == "anthropic"
    assert cli("resume", tmp_path / "run", "--set", "episodes=2").code == 0
    assert {*asked} == {"own", "claude-haiku-5-5"}


def test_a_models_whole_name_makes_the_same_requests(
    cli: CommandLine, asked: list[str], tmp_path: Path
) -> None:
    keys = []
    for number, words in enumerate((("--model", "openai/own"), ("--provider", "openai"))):
        model = () if number == 0 else ("--model", "own")
        folder = tmp_path / f"run{number}"
        run = ("run", *WORDS, *PRICE, *SMALL, "--run-dir", folder)
        assert cli(*run, *words, *model).code == 0
        events = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
        keys.append({event["key"] for event in events if "key" in event})
    assert keys[0] == keys[1]
    assert keys[0]


def test_ollamas_models_cost_nothing_and_a_named_provider_takes_names_as_they_are(
    cli: CommandLine, asked: list[str], tmp_path: Path
) -> None:
    run = ("run", *WORDS, *SMALL, "--json", "--run-dir")
    found = cli(*run, tmp_path / "free", "--model", "ollama/llama3")
    assert found.code == 0, found
    assert json.loads(found.out)["cost_usd"] == 0
    price = ("--set", 'prices={"openai/own": {input: 1, output: 1}}')
    whole = cli(*run, tmp_path / "whole", *price, "--provider", "openai", "--model", "openai/own")
    assert whole.code == 0, whole
    assert {*asked} == {"llama3", "openai/own"}


@pytest.mark.parametrize("model", ["claude-haiku-5-5", "anthropic/claude-haiku-5-5"])
def test_a_claude_model_without_its_key_says_so(
    cli: CommandLine, tmp_path: Path, model: str
) -> None:
    found = cli("run", *WORDS, "--model", model, "--run-dir", tmp_path / "run")
    found.failed(2, "ANTHROPIC_API_KEY is not set")
    assert found.err.count("--provider embedded") == 1
    assert not (tmp_path / "run").exists()


def test_a_key_of_openai_is_never_answered_by_the_embedded_model(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-this-user")
    found = cli("run", *WORDS, "--run-dir", tmp_path / "run")
    found.failed(2, "OPENAI_API_KEY is set", "--model openai/NAME")
    assert not (tmp_path / "run").exists()


def test_the_line_says_which_key_was_taken(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for vendor in ("ANTHROPIC", "OPENAI"):
        monkeypatch.setenv(f"{vendor}_API_KEY", "a-key-of-this-user")
    found = cli("run", *WORDS, "--dry-run")
    assert found.code == 0
    assert "ANTHROPIC_API_KEY is set: using Claude" in found.err
    assert "OPENAI_API_KEY too" in found.err
