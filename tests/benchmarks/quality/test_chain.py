"""The chain's commands, and the chain itself on the fake provider."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup

from benchmarks.quality import chain
from orchestry.cli import group
from orchestry.store.run import load_run
from tests.engine.test_run import BASE

SMALL = chain.Experiment(
    "small",
    run=tuple(word for item in BASE for word in ("--set", item)),
    seeds=(0, 1),
    baselines=("--samples", "2", "--episodes", "2"),
    evaluate=("--samples", "2"),
)


@pytest.mark.parametrize("experiment", chain.EXPERIMENTS, ids=lambda each: each.name)
def test_every_command_is_one_that_the_command_line_takes(experiment: chain.Experiment) -> None:
    for words in experiment.commands(Path("runs")):
        context: Any = group.make_context("orchestry", [], resilient_parsing=True)
        arguments = list(words)
        while isinstance(context.command, TyperGroup):
            name = arguments.pop(0)
            command = context.command.get_command(context, name)
            assert command is not None, words
            context = command.make_context(name, list(arguments), parent=context)


@pytest.mark.slow
def test_a_chain_plays_what_is_missing_and_no_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chain.play(SMALL, tmp_path)
    runs = {seed: load_run(SMALL.folder(tmp_path, seed)) for seed in (0, 1)}
    sizes = {seed: len(run.events) for seed, run in runs.items()}
    assert all((run.folder / "evaluations/test--samples-2").is_dir() for run in runs.values())
    assert len(list((runs[0].folder / "baselines").iterdir())) == 6
    assert not (runs[1].folder / "baselines").exists()
    chain.play(SMALL, tmp_path)
    again = {seed: load_run(run.folder) for seed, run in runs.items()}
    assert all(again[seed].rewards == run.rewards for seed, run in runs.items())
    assert all(len(again[seed].events) <= sizes[seed] + 2 for seed in sizes)  # opened, stopped
    said = capfd.readouterr().out
    assert f"$ orchestry resume {runs[0].folder}" in said


def test_what_is_written_names_the_commands_behind_it() -> None:
    text = chain.origin(SMALL, Path("runs"))
    assert "python -m benchmarks.quality.chain --only small --write" in text
    for words in SMALL.commands(Path("runs")):
        assert f"orchestry {shlex.join(words)}" in text


def test_a_step_that_fails_ends_the_chain() -> None:
    with pytest.raises(SystemExit, match="ended with 2"):
        chain.call(("run", "--task", "nowhere"))
