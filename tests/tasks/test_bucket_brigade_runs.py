"""Bucket Brigade by backend local, beside a scripted player."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import validate
from orchestry.engine.session import Silent
from orchestry.engine.tournament import Tournament, entries
from orchestry.store.run import Run, load_run
from tests.tasks.local_runs import learned_run

pytestmark = pytest.mark.slow
SHORT = (
    "task=bucket_brigade",
    "options.scenario=easy",
    "options.agents=3",
    "options.rules.min_nights=1",
    "options.max_nights=2",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What both tournaments play with."""
    return learned_run(tmp_path_factory.mktemp("learned"), *SHORT)


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


def test_local_models_meet_scripts_and_other_models_in_a_tournament(
    run: Run, tmp_path: Path
) -> None:
    """In the seats of the team that learned its adapters answer, in others an API."""
    config = {key: run.config[key] for key in ("task", "options")}
    asked = {"provider": {"name": "fake"}, "sampling": {"max_tokens": 8}, "episodes": 1}
    api = orchestry.train({**config, **asked}, tmp_path / "api")
    players = entries(["guard", str(run.folder), str(api.folder)], False, Silent())
    game = validate({**config, "backend": "ppo"})
    found = Tournament(game, players, 4, 2, False, tmp_path / "t", Silent()).play(None)
    assert (found.stopped, found.missing) == ("done", [])
    assert len(found.cells) == 9
    played = load_run(tmp_path / "t" / "texts" / "run" / "guard" / "0")
    assert played.config["learn"]["from"].endswith("run/checkpoints/000004")
    assert _models(played).keys() == {"agent_0"}
    mixed = load_run(tmp_path / "t" / "texts" / "run" / "api" / "0")
    heat = {role: own["temperature"] for role, own in mixed.config["agents"].items()}
    assert heat == {"agent_0": 0.8, "agent_1": None, "agent_2": None}
    assert mixed.config["sampling"]["temperature"] is None, "a model may refuse to have one"
    both = _models(mixed)
    assert both.pop("agent_0").startswith("tiny+"), "the base and its adapters"
    assert both == {f"agent_{seat}": "fake-1" for seat in (1, 2)}


def test_the_weights_of_two_runs_meet(run: Run, tmp_path: Path) -> None:
    """A seat takes the adapter of the run that sits there."""
    other = learned_run(tmp_path / "b", *SHORT, "seed=1", "learn.shared=true").folder
    other = other.rename(tmp_path / "other")
    wide = learned_run(tmp_path / "c", *SHORT, "learn.rank=2").folder.rename(tmp_path / "wide")
    game = validate({**{key: run.config[key] for key in ("task", "options")}, "backend": "ppo"})
    names = [str(run.folder), str(other)]
    found = Tournament(
        game, entries(names, False, Silent()), 4, 1, False, tmp_path / "t", Silent()
    ).play(None)
    assert (found.stopped, found.missing) == ("done", [])
    assert len(before := found.cells) == 4
    start = tmp_path / "t" / "texts" / "run" / "other" / "2" / "start"
    kept = run.folder / "checkpoints" / "000004"
    for seat in range(3):
        own = kept / f"agent_{seat}" if seat == 2 else other / "checkpoints" / "000004" / "shared"
        weights = "adapter_model.safetensors"
        mine = (start / f"agent_{seat}" / weights).read_bytes()
        assert mine == (own / weights).read_bytes()
    players = entries([*names, str(wide)], False, Silent())
    found = Tournament(game, players, 4, 1, False, tmp_path / "t", Silent()).play(None)
    assert sum("differ in size" in text for text in found.missing) == len(found.missing) == 4
    assert [cell for cell in found.cells if "wide" not in (cell.one, cell.other)] == before


def _models(run: Run) -> dict[str, str]:
    """Who answered for each agent."""
    turns = [turn for one in run.episodes for node in one.nodes for turn in node.turns]
    return {turn.agent: turn.completion.model for turn in turns}
