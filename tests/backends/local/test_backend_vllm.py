"""Runs of the local backend whose answers a vLLM server draws, from adapters that it reloads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import ne
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import orchestry
from orchestry.core.errors import ConfigError, ProviderError
from orchestry.engine.run import prepare, resume
from orchestry.store.run import Run, load_run
from tests.backends.letters import (
    EVERY,
    adapters,
    config,
    learned,
    surprise,
    trainer,
    turns,
)
from tests.backends.local.vllmloopback import vllm

if TYPE_CHECKING:
    from tests.backends.local.vllmloopback import Vllm

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def server() -> Iterator[Vllm]:
    with vllm() as state:
        yield state


def said(run: Run) -> list[tuple[str, str]]:
    return [(t.agent, t.completion.text) for episode in run.episodes for t in turns(episode)]


def test_a_run_is_the_one_without_a_server(
    finished: Run, server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    """The server here draws as this process does, but for rounding: two tokens of all but the same
    probability may change places."""
    run = orchestry.train(config(model, tasks, f"learn.vllm_url={server.url}"), tmp_path / "run")
    half = len(said(run)) // 2
    assert said(run)[:half] == said(finished)[:half]
    first = "checkpoints/000004/"
    assert {name: saved for name, saved in adapters(run.folder).items() if first in name} == {
        name: saved for name, saved in adapters(finished.folder).items() if first in name
    }
    assert sum(map(ne, said(run), said(finished))) <= half // 10
    after = trainer(model, run.folder / "checkpoints" / "000004")
    assert surprise(after, run.episodes[EVERY]) < 1e-4
    models = [body["model"] for body in server.bodies("/v1/completions")]
    assert len(set(models)) == 1 + 2  # the base alone, then each agent's first update
    loaded = [body["lora_path"] for body in server.bodies("/v1/load_lora_adapter")]
    assert loaded == sorted(
        str(run.folder / "checkpoints" / "000004" / role) for role in ("left", "right")
    )


@pytest.mark.slow
def test_a_team_learns_what_its_reward_asks_for(
    server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    sets = ("episodes=40", "learn.group_size=8", f"learn.vllm_url={server.url}")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    rewards = [episode.mean_leaf_reward for episode in run.episodes]
    assert fmean(rewards[-EVERY:]) - fmean(rewards[:EVERY]) > 0.4
    assert len(server.adapters) == 2


def test_a_server_that_fails_loses_nothing_and_a_resume_goes_on(
    server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    """It refuses adapters from the first update on; then it is started as it should be."""
    server.lora = False
    sets = ("episodes=4", "learn.every=2", "learn.group_size=2", f"learn.vllm_url={server.url}")
    with pytest.raises(ProviderError, match=r"LoRA is not enabled.*resume the run"):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    stopped = load_run(tmp_path / "run")
    assert (len(learned(stopped)), len(stopped.episodes)) == (1, 2)
    server.lora = True
    run = resume(tmp_path / "run")
    assert (len(learned(run)), len(run.episodes)) == (2, 4)
    after = trainer(model, run.folder / "checkpoints" / "000002")
    assert surprise(after, run.episodes[2]) < 1e-4


def test_a_run_goes_on_from_adapters_of_another(
    finished: Run, server: Vllm, model: str, tasks: Path, tmp_path: Path
) -> None:
    source = finished.folder / "checkpoints" / "000008"
    sets = (f"learn.from={source}", "episodes=1", f"learn.vllm_url={server.url}")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert surprise(trainer(model, source), run.episodes[0]) < 1e-4
    assert {Path(path).parent for path, _, _ in server.adapters.values()} == {source}


def test_no_server_is_found_out_before_anything_is_played(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    with vllm(updates=False) as state:
        settings = config(model, tasks, f"learn.vllm_url={state.url}")
        with pytest.raises(
            ConfigError, match=rf"at {re.escape(state.url)} takes no adapters .*{model}"
        ):
            orchestry.train(settings, tmp_path / "run")
    assert not load_run(tmp_path / "run").episodes


def test_one_server_serves_one_base(server: Vllm, model: str, tasks: Path, tmp_path: Path) -> None:
    from tests.backends.local.tiny import tiny_folder

    other = tiny_folder(tmp_path / "other", seed=1)
    sets = (f"agents.right.model={other}", f"learn.vllm_url={server.url}")
    with pytest.raises(
        ConfigError, match=r"one server, which serves one base, found .*tiny, .*other"
    ):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")


def test_what_vllm_draws_is_not_called_deterministic(model: str, tasks: Path) -> None:
    with_server = config(model, tasks, "learn.vllm_url=http://127.0.0.1:1/v1/")
    assert prepare(config(model, tasks)).backend.provider.deterministic
    assert not prepare(with_server).backend.provider.deterministic


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://user:word@host", "http://host/v2"])
def test_an_address_that_is_none(model: str, tasks: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"learn.vllm_url"):
        config(model, tasks, f"learn.vllm_url={url}")
