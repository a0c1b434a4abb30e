"""How the command line's flags, files and `--set` become one config."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import typer

from orchestry.cli.options import (
    FLAG_OF,
    RunFlags,
    config_from,
    layers,
    provider_name,
    run_folder,
    settings,
    which_update,
)
from orchestry.core.choices import BackendName
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import leaves


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
    later = (run / "journal.jsonl").stat().st_mtime_ns + 10**9  # a file's clock ticks in ms
    os.utime(stage / "journal.jsonl", ns=(later, later))
    (stage.parents[1] / "config.yaml").write_text("")
    assert run_folder("last") == Path("runs", "recipe")
    (tmp_path / "last").mkdir()
    assert provider_name("local:last") == "local:last"


@pytest.mark.parametrize(
    ("backend", "keys"),
    [
        ("local", ("learn.learning_rate", "learn.every", "learn.keep_every", "learn.device")),
        ("ppo", ("ppo.learning_rate", "ppo.horizon", "ppo.checkpoint_every", "ppo.device")),
    ],
)
def test_what_users_of_other_trainers_type_are_keys_of_the_backend(
    backend: BackendName, keys: tuple[str, ...]
) -> None:
    flags = RunFlags(backend=backend, lr=0.25, batch_size=512, checkpoint_interval="50", cpu=True)
    batch = 512 if backend == "local" else 2  # of each of the 256 games
    assert [layers(flags)[2][key] for key in keys] == [0.25, batch, "50", "cpu"]
    plain = dict(leaves(config_from(**flags).model_dump()))
    assert [plain[key] for key in keys] == [0.25, batch, 50, "cpu"]
    assert {FLAG_OF[key] for key in keys} == {
        *("--lr", "--batch-size", "--checkpoint-interval", "--cpu")
    }


def test_epochs_are_passes_over_a_batch_and_checkpoints_come_after_so_many_steps() -> None:
    flags = RunFlags(backend="ppo", epochs=7, checkpoint_interval="500k")
    found = config_from(**flags).ppo
    assert (found.passes, found.checkpoint_every) == (7, 500_000)


def test_episodes_stand_over_a_presets_passes() -> None:
    assert config_from(file=Path("arxiv")).passes == 2
    found = config_from(file=Path("arxiv"), episodes=7)
    assert (found.episodes, found.passes) == (7, None)
    found = config_from(file=Path("arxiv"), sets=["episodes=7"])
    assert (found.episodes, found.passes) == (7, None)


def test_a_recipes_stages_learn_as_backend_local_does() -> None:
    flags = RunFlags(recipe="search+magrpo", lr=0.5, batch_size=2)
    found = config_from(**flags).learn
    assert (found.learning_rate, found.every) == (0.5, 2)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (RunFlags(lr=0.1), "--lr is for backend local and ppo, and this is backend api"),
        (RunFlags(batch_size=4), "behaviors.every=N"),
        (RunFlags(checkpoint_interval="4"), "--checkpoint-interval is for backend local and ppo"),
        (RunFlags(epochs=2), "--epochs is for backend ppo, and this is backend api: --passes N"),
        (RunFlags(backend="local", epochs=2), "--passes N plays every train problem N times"),
        (RunFlags(backend="ppo", passes=2), "does not read --passes"),
        (RunFlags(backend="ppo", batch_size=64), "--batch-size 64: a batch has the same number"),
        (RunFlags(passes=2, episodes=3), "--episodes and --passes both"),
        (RunFlags(passes=2, sets=["episodes=3"]), "--episodes and --passes both"),
        (RunFlags(backend="local", checkpoint_interval="500k"), "learn.keep_every"),
    ],
)
def test_a_flag_that_the_backend_has_no_key_for_names_what_to_use(
    flags: RunFlags, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        config_from(**flags)


@pytest.mark.parametrize(("backend", "key"), [("local", "learn"), ("ppo", "ppo")])
def test_the_seeds_flags_of_games_are_keys(backend: BackendName, key: str) -> None:
    game = RunFlags(backend=backend, task="bucket_brigade", scenario="hard", opponents=4)
    found = config_from(**(game | RunFlags(eval_interval="5")))
    assert found.options == {"scenario": "hard", "agents": 5}
    assert getattr(found, key).evaluate_every == 5
    with pytest.raises(ConfigError, match=r"--eval-interval is for backend local and ppo"):
        config_from(eval_interval="5")
