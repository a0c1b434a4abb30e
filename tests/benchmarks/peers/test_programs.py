"""Programs of other frameworks play as they are, each with its real package."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

import orchestry
from benchmarks.peers import others_learn, programs_learn
from benchmarks.peers.overhead import python_of
from benchmarks.peers.programs_learn import PROGRAMS
from orchestry.core.config import resolve
from orchestry.core.types import TASK_ERROR
from orchestry.store.run import Run


@pytest.fixture(scope="module")
def packages() -> None:
    """The frameworks, in an environment of their own."""
    try:
        python_of("programs")
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip("the frameworks can't be installed here")


def played(task: str, path: Path, place: Path, *more: str) -> Run:
    sets = (f"task={task}", f"task_path=[{path}]", "provider.name=fake", "episodes=1")
    few = ("search.strategy=chains", "search.k_samples=2", *more)
    return orchestry.train(resolve([], [*sets, *few], {}), place)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_plays_as_it_is(name: str, packages: None, tmp_path: Path) -> None:
    programs_learn.attach(tmp_path, name)
    run = played(name, tmp_path / "tasks", tmp_path / "run")
    turns = [turn for node in run.episodes[0].nodes for turn in node.turns]
    assert [turn.agent for turn in turns].count("editor") == 2
    assert {turn.agent for turn in turns} == {"writer", "editor"}
    scores = [node.score for node in run.episodes[0].nodes if node.score.feedback]
    assert len(scores) == 2
    assert all(0 <= score.total <= 1 and TASK_ERROR not in score.tags for score in scores)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noughts", "rps"])
def test_a_game_of_pettingzoo_plays(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    path = others_learn.attach(tmp_path, name, {})
    run = played(name, path, tmp_path / "run", "sampling.max_tokens=8")
    ends = [node.score for node in run.episodes[0].nodes if node.score.returns]
    assert ends
    assert not any("illegal" in score.tags for score in ends)
    assert others_learn.OTHERS[name].lines < 40
    moves = [turn for node in run.episodes[0].nodes for turn in node.turns]
    cut = sum(turn.completion.stop == "length" for turn in moves)
    said = [f"{cut} of {len(moves)} answers cut off"] if cut else []
    assert [*others_learn.failed(others_learn.OTHERS[name], run)] == said


def test_changed_lines_are_counted(tmp_path: Path) -> None:
    """In a notebook with the lines that are changed, and one more."""
    model = 'model_client = OpenAIChat(\n    model="gpt-4o-2024-08-06",\n)\n'
    first = f'{model}for one in (\n    "primary",\n    model_client=model_client,\n): ...'
    second = 'Team(text=text_termination)\nrun("Write a short poem about the fall season.")'
    cells = [{"cell_type": "code", "source": [one]} for one in (first, second)]
    notebook = tmp_path / "teams.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "markdown"}, *cells]}))
    assert others_learn.lines_changed(notebook) == 5
    notebook.write_text(json.dumps({"cells": cells[1:]}))
    with pytest.raises(RuntimeError, match="any more"):
        others_learn.lines_changed(notebook)
