"""Bucket Brigade by backend local, beside a scripted player."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestry.core.config import validate
from orchestry.engine.session import Silent
from orchestry.engine.tournament import Tournament, entries
from orchestry.store.run import load_run
from tests.tasks.local_runs import learned_run

pytestmark = pytest.mark.slow


def test_local_models_play_beside_a_script(tmp_path: Path) -> None:
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


def test_local_models_meet_scripts_in_a_tournament(tmp_path: Path) -> None:
    """In the seats of the team that learned; its adapters answer."""
    run = learned_run(
        tmp_path,
        "task=bucket_brigade",
        "options.scenario=easy",
        "options.rules.min_nights=1",
        "options.max_nights=2",
    )
    config = validate({**{key: run.config[key] for key in ("task", "options")}, "backend": "ppo"})
    players = entries(["guard", str(run.folder)], False, Silent())
    found = Tournament(config, players, 4, 2, False, tmp_path / "t", Silent()).play(None)
    assert (found.stopped, found.missing) == ("done", [])
    assert {(cell.one, cell.other): len(cell.earned_D) for cell in found.cells} == {
        ("guard", "guard"): 4,
        ("guard", "run"): 2,
        ("run", "guard"): 2,
        ("run", "run"): 2,
    }
    played = load_run(tmp_path / "t" / "texts" / "run--guard--0")
    assert played.config["learn"]["from"].endswith("run/checkpoints/000004")
    turns = [turn for one in played.episodes for node in one.nodes for turn in node.turns]
    assert {turn.agent for turn in turns} == {"agent_0"}
