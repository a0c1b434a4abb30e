"""What a run of backend ppo says while it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestry.engine.neural import _said
from orchestry.engine.run import resume, train
from orchestry.engine.session import Silent
from orchestry.report.runs import Salvaged
from orchestry.store.progress import PACE


@pytest.mark.parametrize(("steps", "shown"), [(512, "step 512 of 1,000:"), (1024, "step 1,024:")])
def test_steps_beyond_what_was_asked_are_shown_alone(steps: int, shown: str) -> None:
    assert _said({"steps": steps, PACE: 10.0}, 1_000).startswith(shown)


class Heard(Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        self.warnings += [text] if text.startswith("warning after step") else []


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_policy_that_settles_on_too_little_is_told_so_once(tmp_path: Path) -> None:
    """At this rate, and without a bonus for entropy."""
    sure = {"learning_rate": 0.05, "entropy": 0.0, "anneal": False, "checkpoint_every": 1}
    small = {"games": 8, "horizon": 8, "minibatch": 64, "steps": 64 * 52}
    config = {"backend": "ppo", "task": "bucket_brigade", "ppo": {**small, **sure}}
    run = train({**config, "options": {"scenario": "hard"}}, tmp_path / "run", heard := Heard())
    (told,) = heard.warnings
    assert "entropy has halved: the policy" in told
    assert "ppo.learning_rate (now 0.05)" in told
    assert [text[1 : len(told)] for text in Salvaged(run.folder).collapses] == [told[1:]]
    resume(run.folder, {"ppo": {"steps": 64 * 56}}, later := Heard())
    assert later.warnings == []
