"""Weights that answer a program of the user's own, and learn from every call."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiohttp")

import orchestry
from orchestry.core.config import resolve
from orchestry.store.journal import Learned
from tests.backends.letters import turns

TASKS = Path(__file__).parents[2] / "fixtures" / "tasks"
GROUP, EVERY = 3, 2


def test_weights_learn_from_every_call_of_a_program(model: str, tmp_path: Path) -> None:
    sets = ["backend=local", "task=chatter", f"task_path=[{TASKS}]", f"provider.model={model}"]
    sets += ["sampling.max_tokens=8", "episodes=4", f"learn.every={EVERY}", "learn.threads=1"]
    sets += [f"learn.group_size={GROUP}", "learn.device=cpu", "budget.usd=5"]
    one, other = (orchestry.train(resolve([], sets, {}), tmp_path / name) for name in "ab")
    learned = [event.state for event in one.events if isinstance(event, Learned)]
    assert len(learned) == 2
    assert 0 < learned[0]["samples"] <= EVERY * GROUP * 2
    drawn, again = ([t for e in run.episodes for t in turns(e)] for run in (one, other))
    assert len(drawn) == 4 * GROUP * 2
    assert [turn.completion for turn in drawn] == [turn.completion for turn in again]
