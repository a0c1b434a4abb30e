"""A local run's updates in TensorBoard: one figure an update, also after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensorboard")

import orchestry
from orchestry.engine.run import resume
from orchestry.store.journal import Learned
from tests.backends.letters import config
from tests.store.test_trackers import BOARD, assert_shows, curves


def test_each_update_is_shown_at_the_last_episode_that_it_learned_from(
    model: str, tasks: Path, tmp_path: Path, one_thread: None
) -> None:
    run = orchestry.train(config(model, tasks, BOARD, "episodes=6"), tmp_path / "run")
    run = resume(run.folder, {"episodes": 8})  # the last two were no update's: played again
    found = curves(run.folder)
    assert_shows(found, run.folder)
    updates = [event.state for event in run.events if isinstance(event, Learned)]
    assert [step for step, _ in found["learn/loss"]] == [3, 7]
    for key in ("loss", "rate", "reward", "samples", "skipped", "tokens"):
        expected = [state[key] for state in updates]
        assert [x for _, x in found[f"learn/{key}"]] == pytest.approx(expected)
    for agent, norm in updates[-1]["norms"].items():
        assert found[f"learn/norms/{agent}"][-1][1] == pytest.approx(norm)
