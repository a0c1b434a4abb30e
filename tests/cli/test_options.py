"""How the command line's flags, files and `--set` become one config."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from orchestry.cli.options import config_from, provider_name, run_folder, settings, which_update
from orchestry.core.errors import ConfigError


def test_a_flag_wins_over_set_and_set_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 1\nepisodes: 4\nsearch: {k_samples: 2}\n")
    sets = ["seed=2", "episodes=5", "curriculum=grade"]
    found = config_from(file=file, sets=sets, episodes=6, k_samples=None, trust=True)
    assert (found.seed, found.episodes, found.search.k_samples) == (2, 6, 2)
    assert found.curriculum == "grade"


def test_the_command_lines_own_keys_are_nested_like_a_config() -> None:
    found = settings({"sets": ["learn.every=2"], "model": "m", "budget": None})
    assert found == {"learn": {"every": 2}, "provider": {"model": "m"}}


def test_a_preset_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="laptopp"):
        config_from(file=Path("laptopp"))


def test_an_update_is_a_number_or_the_best() -> None:
    assert [which_update(text) for text in (None, "best", "3")] == [None, "best", 3]
    with pytest.raises(typer.BadParameter, match="'-1' is not an update"):
        which_update("-1")


@pytest.mark.parametrize("text", ["auto", "fake", "local"])
def test_a_provider_is_named(text: str) -> None:
    assert provider_name(text) == text


@pytest.mark.parametrize("text", ["locl", "local:", "fake:runs", ""])
def test_another_word_is_no_provider(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is none of auto, .* or local:RUN"):
        provider_name(text)


def test_a_trained_team_is_named_by_its_folder(tmp_path: Path) -> None:
    found = config_from(provider=provider_name(f"local:{tmp_path}")).provider
    assert (found.name, found.team) == ("local", tmp_path)


def test_the_last_run_can_be_the_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "trained"
    run.mkdir(parents=True)
    for name in ("journal.jsonl", "config.yaml"):
        (run / name).write_text("")
    assert provider_name("local:last") == f"local:{Path('runs', 'trained')}"
    stage = tmp_path / "runs" / "recipe" / "stages" / "1-search"
    stage.mkdir(parents=True)
    (stage / "journal.jsonl").write_text("")
    (stage.parents[1] / "config.yaml").write_text("")
    assert run_folder("last") == Path("runs", "recipe")
    (tmp_path / "last").mkdir()
    assert provider_name("local:last") == "local:last"
