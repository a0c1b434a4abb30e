"""A run of backend ppo: reported, and refused where a command needs what agents wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.errors import ConfigError
from orchestry.engine.run import resume
from orchestry.store.games import FILE, kept
from orchestry.store.progress import progress
from tests.cli.support import CommandLine

pytest.importorskip("numba")
RUN = ("run", "--backend", "ppo", "--task", "bucket_brigade", "--run-dir", "made")
CONFIG: dict[str, Any] = {
    "backend": "ppo",
    "task": "bucket_brigade",
    "ppo": {"games": 16, "horizon": 8, "minibatch": 128, "steps": 400, "device": "cpu"},
}
FIRES = """\
from orchestry.task.registry import load_task

load_task("bucket_brigade")
from orchestry_tasks.bucket_brigade.task import BucketBrigade

class Fires(BucketBrigade):
    name = "fires"
"""
"""A task of the user's, whose kernel is compiled already."""


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
    for ask in (found.baselines, lambda: found.ask("hello"), lambda: found.best):
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


@pytest.mark.slow
def test_it_is_reported(cli: CommandLine, run: Path) -> None:
    pytest.importorskip("matplotlib")
    done = cli("report", run, "--out", "there")
    assert done.code == 0, done
    games = progress(run)[-1]["train/total_episodes"]
    assert f"512 steps, {games:,} games, 1 checkpoint" in " ".join(done.out.split())
    assert "Missing" not in done.out
    assert Path("there/figures/training-bucket_brigade.svg").is_file()


def test_the_panel_counts_the_games_that_were_averaged(cli: CommandLine) -> None:
    few = ("ppo.games=3", "ppo.horizon=30", "ppo.steps=90", "options.scenario=hard")
    shown = cli(*RUN, "--cpu", *(part for one in few for part in ("--set", one)))
    games = progress(Path("made"))[-1]["train/total_episodes"]
    assert 1 < games < 100
    assert f"over the last {games} games" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            "--episodes 20 --provider fake --model m --budget 5 --k-samples 4 --beam-width 2",
            "--episodes, --provider, --model, --beam-width, --k-samples, --budget",
        ),
        ("--patience 3 --allow-unsafe-code", "--patience, --allow-unsafe-code"),
        ("--set judge.enabled=null --set learn.rank=8", "judge.enabled, learn.rank"),
        ("--set weights.x=1 --set agents.agent_0.system_prompt=x", "weights.x, agents.agent_0.sys"),
        ("--show-best", "--show-best"),
        ("--config laptop", "provider.name"),
        ("--dry-run --set judge.enabled=true", "judge.enabled"),
    ],
)
def test_options_for_models_are_refused(cli: CommandLine, options: str, named: str) -> None:
    cli(*RUN, *options.split()).failed(2, f"backend ppo asks no model, and does not read {named}")
    assert not Path("made").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_start_that_is_not_there_is_told_at_once(cli: CommandLine, more: tuple[str]) -> None:
    done = cli(*RUN, "--set", "ppo.from=nowhere", *more)
    done.failed(2, "nowhere does not exist")
    assert not Path("made").exists()


def test_a_config_of_defaults_is_taken(cli: CommandLine, run: Path) -> None:
    assert cli("run", "--config", run / "config.yaml", "--dry-run").code == 0


def test_options_of_the_learner_are_refused_elsewhere(cli: CommandLine) -> None:
    done = cli("run", *RUN[3:], "--steps", "1k", "--cpu", "--set", "ppo.games=2")
    done.failed(2, "only backend ppo reads ppo.games, --steps, and this is backend api")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--episodes 5 --budget 2 --patience 1", "--budget, --patience, --episodes"),
        ("--show-best", "--show-best"),
        ("--set learn.learning_rate=1", "learn.learning_rate"),
    ],
)
def test_so_are_those_of_a_resume(cli: CommandLine, run: Path, options: str, named: str) -> None:
    before = (run / "journal.jsonl").read_bytes()
    done = cli("resume", run, *options.split())
    assert done.code == 2
    assert f"does not read {named}: leave" in done.err
    assert (run / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("changes", [{"episodes": 3}, {"ppo": {"hidden": [3]}}])
def test_a_resume_names_what_this_backend_takes(run: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        resume(run, changes)
    said = str(refused.value)
    assert said.endswith(
        "; a resume takes executor, ppo.checkpoint_every, ppo.device, ppo.evaluate_every, "
        "ppo.evaluate_games, ppo.keep, ppo.steps, ppo.threads, ranks, task_path, trackers"
    )
    assert "learn.from" not in said


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--show-best --no-compare --patience 1", "--no-compare, --show-best, --patience"),
        ("--update 0 --samples 2", "--update, --samples"),
        ("--set backend=api --set ppo.policies=own", "backend, ppo.policies"),
        ("--set judge.enabled=true --set trackers.tensorboard=true", "judge.enabled, trackers.ten"),
    ],
)
def test_so_are_those_of_an_evaluation(
    cli: CommandLine, run: Path, options: str, named: str
) -> None:
    done = cli("evaluate", run, *options.split())
    done.failed(2, f"plays new games: {named}", "would have no effect", "--episodes says how many")


def test_policies_of_one_game_play_no_other_task(cli: CommandLine, run: Path) -> None:
    for args in (("--task", "tldr"), ("--map", "agent_0=concise")):
        done = cli("evaluate", run, *args)
        done.failed(2, "read the numbers of one game", "--set options.NAME=...")


def test_one_game_has_no_interval(cli: CommandLine, run: Path) -> None:
    cli("evaluate", run, "--episodes", 1).failed(2, "an interval needs at least 2 games")


def test_an_evaluation_finds_a_task_that_moved(cli: CommandLine) -> None:
    Path("shelf/fires").mkdir(parents=True)
    Path("shelf/fires/task.py").write_text(FIRES)
    config = {**CONFIG, "task": "fires", "task_path": ["shelf"]}
    folder = orchestry.train(config, "made").folder
    Path("shelf").rename("moved")
    asked = ("evaluate", folder, "--episodes", 4, "--json", "--verbose")
    assert "unknown task 'fires'" in cli(*asked).err
    done = cli(*asked, "--task-path", "moved")
    assert json.loads(done.out)["games"] == 4


@pytest.mark.slow
def test_a_dry_run_says_what_is_played_and_that_nothing_is_paid(cli: CommandLine) -> None:
    dry = (*RUN, "--steps", "1M", "--dry-run")
    shown = cli(*dry)
    first, second, device, memory, time = shown.out.splitlines()
    assert first == "bucket_brigade: 1,015,808 steps, in 62 batches of 16,384"
    assert second == "Nothing is paid: backend ppo asks no model."
    assert device.startswith("device: ")
    assert memory.startswith("memory: about ")
    assert time.endswith("(by a short measurement on this machine), without scoring and loading")
    found = json.loads(cli(*dry, "--json", "--gpu-price", 3.6).out)
    machine = found["machine"]
    assert machine["usd"] == pytest.approx(machine["seconds"] / 1000)
    assert machine["seconds"] > 0
    assert (found["calls"], found["steps"], found["batches"]) == (0, 1_015_808, 62)
    assert found["cost_usd"] == {"p5": 0.0, "expected": 0.0, "p95": 0.0, "max": 0.0}
    assert not Path("made").exists()
    cli(*dry, "--set", "options.scenario=nowhere").failed(2, "unknown scenario 'nowhere'")
    cli(*dry, "--gpu", "a100").failed(2, "--gpu is for backend local")
