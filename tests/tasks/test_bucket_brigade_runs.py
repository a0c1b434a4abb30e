"""Bucket Brigade by backend local, beside a scripted player."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.local_runs import learned_run

pytestmark = pytest.mark.slow


def test_local_models_learn_beside_a_script(tmp_path: Path) -> None:
    run = learned_run(
        tmp_path,
        "task=bucket_brigade",
        "options.scenario=easy",
        "options.rules.min_nights=1",
        "options.max_nights=2",
        "agents.agent_1.plays=guard",
        "agents.agent_3.plays=always_rest",
    )
    assert run.summary.stopped == "done"
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    assert {turn.agent for turn in turns} == {"agent_0", "agent_2"}
    assert all(len(one.best_node.score.returns) == 4 for one in run.episodes)
    adapters = sorted(path.name for path in (run.folder / "checkpoints" / "000002").iterdir())
    assert [name for name in adapters if name.startswith("agent_")] == ["agent_0", "agent_2"]
