"""Thoughts are trained as actions are, and a killed run goes on to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import orchestry
from orchestry.core.config import resolve
from orchestry.core.thoughts import kind_of
from orchestry.engine.run import resume
from orchestry.store.run import load_run
from tests.backends.letters import TASK, artefacts, config, learned, settings, turns, write_task
from tests.engine.test_run import kill_at

pytestmark = pytest.mark.usefixtures("one_thread")
THINKING = (
    "agents.left.infer=true",
    "agents.left.infer_bonus=0.3",
    "agents.right.infer=true",
    "agents.right.chain=[plan]",
)


def test_every_call_of_a_move_is_learned_from(model: str, tasks: Path, tmp_path: Path) -> None:
    plain = orchestry.train(config(model, tasks, "episodes=4"), tmp_path / "plain")
    run = orchestry.train(config(model, tasks, "episodes=4", *THINKING), tmp_path / "run")
    found = [turn for episode in run.episodes for turn in turns(episode)]
    kinds: dict[str, list[str]] = {"left": [], "right": []}
    for turn in found:
        assert turn.completion.tokens is not None
        kinds[turn.agent].append(kind_of(turn.messages[-1].content))
    for agent, steps in (("left", {"belief", ""}), ("right", {"belief", "step", ""})):
        assert set(kinds[agent]) == steps
        assert len({kinds[agent].count(kind) for kind in steps}) == 1  # one of each per action
    assert len(found) > len([turn for episode in plain.episodes for turn in turns(episode)])
    assert len(learned(run)) == 1
    assert artefacts(run.folder)["adapters"] != artefacts(plain.folder)["adapters"]
    assert all(0.0 <= reward <= 1.0 for reward in run.rewards)


@pytest.mark.slow
def test_a_run_in_two_parts_equals_a_whole_one(model: str, tasks: Path, tmp_path: Path) -> None:
    whole = orchestry.train(config(model, tasks, *THINKING, "episodes=8"), tmp_path / "whole")
    part = orchestry.train(config(model, tasks, *THINKING, "episodes=6"), tmp_path / "part")
    resume(part.folder, {"episodes": 8})
    assert artefacts(part.folder) == artefacts(whole.folder)


@pytest.mark.slow
def test_a_run_killed_after_an_update_goes_on_as_if_it_had_not_been(
    model: str, tmp_path: Path
) -> None:
    tasks = write_task(tmp_path / "tasks", TASK.replace("PAUSE = 0.0", "PAUSE = 0.1"))
    sets = settings(model, tasks, *THINKING, "episodes=12")
    whole = orchestry.train(resolve([], sets), tmp_path / "whole")
    folder = tmp_path / "killed"
    words = [word for item in sets for word in ("--set", item)]
    kill_at(b'"learned","update":1', folder, "run", "--run-dir", str(folder), *words)
    assert len(learned(load_run(folder))) == 1
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)
