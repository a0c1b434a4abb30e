"""The examples of one file each: the kernel as a library, by public names alone."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.learning import LearnConfig
from orchestry.core.types import Member

ROOT = Path(__file__).resolve().parents[2]
LINES = {"search_loop.py": 90, "magrpo_loop.py": 150, "teach_then_learn.py": 50}
"""Each shows how few lines a loop takes."""
REWARD = r"reward (\d\.\d{3})"


def played(name: str, folder: Path, *args: str) -> str:
    """What an example prints, run in a folder."""
    command = [sys.executable, str(ROOT / "examples" / name), *args]
    own = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", LINES)
def test_an_example_is_one_short_file_and_uses_public_names_alone(name: str) -> None:
    source = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LINES[name]
    tree = ast.parse(source)
    taken = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             for alias in node.names]  # fmt: skip
    reached = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
               and not (isinstance(node.value, ast.Name) and node.value.id == "self")]  # fmt: skip
    assert [one for one in (*taken, *reached) if one.startswith("_")] == []


def test_all_examples_are_tested() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*LINES}


def test_the_search_finds_a_best_trajectory_and_credits_its_agents(tmp_path: Path) -> None:
    said = played("search_loop.py", tmp_path, "--task", "tldr", "--problems", "2")
    assert len(re.findall(REWARD, said)) == 2
    assert said.count("  concise: credit ") == said.count("  detailed: credit ") == 2
    assert "$0.0000 of $5" in said


@pytest.mark.slow
def test_the_loop_of_magrpo_plays_and_learns(tmp_path: Path, model: str) -> None:
    args = ("--task", "tldr", "--model", model, "--updates", "2")
    said = played("magrpo_loop.py", tmp_path, *args)
    assert len(re.findall(REWARD, said)) == 2


@pytest.mark.usefixtures("one_thread")
def test_its_step_is_the_trainers(model: str) -> None:
    from orchestry.backends.local.batch import Batch, Sample
    from orchestry.backends.local.model import load_base
    from orchestry.backends.local.optimizer import TeamOptimizer
    from orchestry.backends.local.trainer import Trainer

    loop: Any = runpy.run_path(str(ROOT / "examples" / "magrpo_loop.py"))
    roles, rate = ("first", "second"), loop["RATE"]
    learn = LearnConfig(device="cpu", dropout=0.0, learning_rate=rate)
    members = {one: Member(one, "", model, 8, loop["TEMPERATURE"]) for one in roles}
    trainer = Trainer(members, learn, updates=1, seed=0, warn=print)
    weights = loop["Weights"](load_base(model, device="cpu"), roles, 3)
    pairs = list(zip(weights.adapters.parameters(), trainer.crews[0].adapters.parameters(),
                     strict=True))  # fmt: skip
    for ours, theirs in pairs:
        ours.data.copy_(theirs.data)
    own = {one: weights.adapters.parameters(index) for index, one in enumerate(roles)}
    samples = tuple(
        Sample(role, (1, 2, 3 + group), (4 + place, 9), (-1.0, -1.0), worth, 2 * who + group)
        for who, role in enumerate(roles)
        for group in range(2)
        for place, worth in enumerate((0.75, -0.75))
    )
    batch = Batch(samples, dict.fromkeys(roles, 6))
    optimizer = TeamOptimizer(own, rate=rate, updates=1)
    weights.learn(batch, optimizer)
    trainer.learn(batch)
    gradients = [moments(one.state_dict()) for one in (optimizer, trainer.optimizer)]
    assert max(float(ours.abs().max()) for ours in gradients[0]) > 1e-4
    assert all(ours.allclose(theirs, 0.0, 1e-6) for ours, theirs in zip(*gradients, strict=True))
    moved = [float((ours - theirs).detach().abs().max()) for ours, theirs in pairs]
    assert max(moved) <= 1e-6


def moments(state: Any) -> list[Any]:
    """AdamW's first moments in an optimizer's state: a tenth of its first gradients."""
    if isinstance(state, dict):
        own = [state["exp_avg"]] if "exp_avg" in state else []
        return own + [one for value in state.values() for one in moments(value)]
    return [one for value in state for one in moments(value)] if isinstance(state, list) else []


@pytest.mark.slow
def test_a_recipe_is_a_script(tmp_path: Path, model: str) -> None:
    sets = ("sampling.max_tokens=8", "learn.every=2", "learn.group_size=2", "learn.device=cpu")
    args = ("--model", model, "--task", "tldr", "--episodes", "2", "--samples", "1", "--set", *sets)
    said = played("teach_then_learn.py", tmp_path, *args)
    assert re.search(r"taught: \d\.\d{3} on \d+ test problems", said)
    assert re.search(r"learned: \d\.\d{3} on \d+ test problems", said)
    assert (tmp_path / "runs" / "taught" / "learned" / "journal.jsonl").exists()
