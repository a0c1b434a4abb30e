"""A run of backend ppo: reported, and refused where a command needs what agents wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import orchestry
from orchestry.core.errors import ConfigError
from orchestry.store.games import FILE, kept
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


def test_evaluations_name_their_game_and_are_kept(
    cli: CommandLine, run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    play = ("evaluate", folder, "--episodes", "20")
    assert "the task's own game, 20 games" in " ".join(cli(*play).out.split())
    other = (*play, "--set", "options.scenario=rest_trap", "--set", "agents.agent_3.plays=guard")
    said = " ".join(cli(*other).out.split())
    assert "scenario rest_trap, agent 3 plays guard, 20 games" in said
    with (folder / "evaluations" / FILE).open("ab") as file:
        file.write(b'{"at": 17')  # a kill
    done = cli(*other, "--against", "hero", "--json")
    assert done.code == 0, done
    (first, second, third), damaged = kept(folder)
    assert "games.jsonl line 3 is damaged" in damaged
    assert json.loads(done.out) == {"run_dir": str(folder), **third.model_dump(mode="json")}
    assert (first.options, second.options) == ({}, {"scenario": "rest_trap"})
    assert (first.changes, second.changes) == ({}, {"agents.agent_3.plays": "guard"})
    assert {*third.teams} - {*second.teams} == {"hero"}
    assert third.teams["learned"] == second.teams["learned"]
    assert (first.steps, first.games, first.seed) == (512, 20, 0)


def test_an_evaluation_that_can_not_be_kept_is_shown_with_a_note(
    cli: CommandLine, run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    (folder / "evaluations").write_text("a file in its way")
    done = cli("evaluate", folder, "--episodes", "20")
    assert done.code == 0
    assert "no report will show this" in done.err
    assert "likeliest" in done.out


def test_it_is_reported(cli: CommandLine, run: Path) -> None:
    pytest.importorskip("matplotlib")
    done = cli("report", run, "--out", "there")
    assert done.code == 0, done
    games = progress(run)[-1]["train/total_episodes"]
    assert f"512 steps, {games:,} games, 1 checkpoint" in " ".join(done.out.split())
    assert "Missing" not in done.out
    assert Path("there/figures/training-bucket_brigade.svg").is_file()
