"""One model alone learns by backend local as a team does: with the same options."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

import orchestry
from orchestry.engine.evaluate import Baselines, compared
from orchestry.engine.run import resume
from orchestry.report.measures import gain
from orchestry.store.run import load_run
from orchestry.task.arrangements import ALONE
from tests.backends.letters import EVERY, GROUP, adapters, artefacts, config, learned, turns

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_one_model_alone_is_trained_evaluated_and_resumed(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    chosen = config(model, tasks, "baseline=single")
    run = orchestry.train(chosen, tmp_path / "run")
    assert [state.update for state in learned(run)] == [1, 2]
    assert {turn.agent for episode in run.episodes for turn in turns(episode)} == {ALONE}
    assert run.summary.calls == 2 * EVERY * GROUP  # a team of two makes twice as many
    assert {Path(name).parent.name for name in adapters(run.folder)} == {ALONE}
    after, before = compared(run, samples=2)
    assert before is not None
    assert gain(after, before) is not None
    assert after.config["agents"][ALONE]["max_tokens"] == 2 * 8

    half = config(model, tasks, "baseline=single", f"episodes={EVERY}")
    orchestry.train(half, tmp_path / "half")
    resume(tmp_path / "half", {"episodes": 2 * EVERY})
    one, other = artefacts(run.folder), artefacts(tmp_path / "half")
    assert one["adapters"] == other["adapters"]


def test_one_untrained_model_plays_beside_a_local_run(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    asked = Baselines(config(model, tasks), ("single",), "test", 2)
    (found,) = asked.play(tmp_path)
    assert [episode.calls for episode in found.episodes] == [2] * 4
    assert load_run(found.folder).summary.baseline == "single"
    assert found.summary.updates == 0
