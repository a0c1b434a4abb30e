"""A run of backend ppo: reported, and refused where a command needs what agents wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.core.errors import ConfigError
from orchestry.store.progress import progress
from tests.cli.support import CommandLine

pytest.importorskip("numba")
CONFIG = {
    "backend": "ppo",
    "task": "bucket_brigade",
    "ppo": {"games": 16, "horizon": 8, "minibatch": 128, "steps": 400, "device": "cpu"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only read."""
    import torch

    threads = torch.get_num_threads()
    folder = orchestry.train(CONFIG, tmp_path_factory.mktemp("ppo") / "run").folder
    torch.set_num_threads(threads)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "distil {run} --dry-run",
        "rate {run} --show",
        "export {run}",
        "export {run} --as openai",
        "ask {run} hello",
        "baselines run all --of {run}",
        "behaviors list {run}",
        "behaviors diff {run}",
        "run --task bucket_brigade --provider local:{run} --dry-run",
    ],
)
def test_commands_that_need_texts_say_what_to_use_instead(
    cli: CommandLine, run: Path, command: str
) -> None:
    done = cli(*command.format(run=run).split())
    done.failed(2, f"{run} is a run of backend ppo", "write no texts", "`orchestry report RUN`")
    assert "`orchestry evaluate RUN`" in done.err


def test_so_does_python(run: Path) -> None:
    found = orchestry.load_run(run)
    for ask in (found.baselines, lambda: found.ask("hello")):
        with pytest.raises(ConfigError, match="backend ppo, whose policies play games as numbers"):
            ask()


def test_it_is_reported(cli: CommandLine, run: Path) -> None:
    pytest.importorskip("matplotlib")
    done = cli("report", run, "--out", "there")
    assert done.code == 0, done
    games = progress(run)[-1]["train/total_episodes"]
    assert f"512 steps, {games:,} games, 1 checkpoint" in " ".join(done.out.split())
    assert "Missing" not in done.out
    assert Path("there/figures/training-bucket_brigade.svg").is_file()
