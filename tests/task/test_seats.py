"""Seats of a game by text that scripts and learned policies play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orchestry
from orchestry.core.config import validate
from orchestry.core.errors import ConfigError
from orchestry.core.types import Limits
from orchestry.engine.games import seat_policy
from orchestry.engine.run import resume, train
from orchestry.sandbox import open_sandbox
from orchestry.task.check import check_task
from orchestry.task.setup import set_up
from tests.engine.test_neural import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")
ASKED = "house 2, work, signal rest"


def _set_up(task: str = "bucket_brigade", options: Any = None, **plays: Any) -> Any:
    agents = {role: {"plays": names} for role, names in plays.items()}
    config = validate({"task": task, "agents": agents, "options": options or {}})
    return set_up(config, print, seat_policy).task


def _evening(task: Any, seed: int = 0) -> Any:
    """After the first night."""
    state = task.reset(task.problems("train")[0], seed)
    return task.step(state, dict.fromkeys(task.to_act(state), ASKED))


def test_scripts_act_with_those_who_are_asked() -> None:
    task = _set_up(agent_1="always_work", agent_3="always_rest")
    assert [spec.role for spec in task.agents] == ["agent_0", "agent_2"]
    last = _evening(task).inner.ring.last
    assert [act.mode for act in last] == [1, 1, 1, 0]
    assert [last[seat].house for seat in (0, 2)] == [2, 2]


def test_what_scripts_remember_and_draw_is_in_the_state() -> None:
    task = _set_up(agent_1="random", agent_2="guard", agent_3="coordinator")
    state = _evening(task)
    once, again = (task.step(state, {"agent_0": ASKED}) for _ in range(2))
    assert once == again
    assert hash(once) == hash(again)
    assert once.players[0] != state.players[0]
    assert _evening(task, 1) != state, "another seed, other random actions"


def test_of_several_players_a_game_has_one() -> None:
    task = _set_up(agent_3=["always_work", "always_rest", "guard"])
    names = {task.reset(task.problems("train")[n], 0).players[0][1] for n in range(24)}
    assert names == {"always_work", "always_rest", "guard"}


def test_scripts_play_by_text_as_by_arrays() -> None:
    """A script asked about the text game's observations acts as the text game says."""
    task = _set_up(agent_2="guard")
    state = task.reset(task.problems("train")[3], 5)
    script = task.task.script("guard", (2,), 1, 0)
    for night in range(6):
        if not task.to_act(state):
            break
        seen = task.task.seen(state.inner)
        assert seen.shape == (4, 42)
        (action,) = script.act(seen[None, [2]], np.array([night == 0]))[0]
        state = task.step(state, dict.fromkeys(task.to_act(state), "house 0, rest, signal rest"))
        assert tuple(state.inner.ring.last[2]) == tuple(action)


def test_scripts_announce_before_they_act() -> None:
    rules = {"commitment_mode": "two_phase"}
    task = _set_up(options={"rules": rules}, agent_1="always_work", agent_3="always_rest")
    state = task.reset(task.problems("train")[0], 0)
    state = task.step(state, dict.fromkeys(task.to_act(state), "announce rest"))
    assert state.inner.ring.promised == (0, 1, 0, 0)
    state = task.step(state, dict.fromkeys(task.to_act(state), ASKED))
    assert [act.mode for act in state.inner.ring.last] == [1, 1, 1, 0]
    assert state.inner.unread == 0


@pytest.mark.slow
async def test_such_a_task_keeps_the_contract(learned: Path) -> None:
    task = _set_up(agent_0="liar", agent_1="coordinator", agent_2=str(learned))
    findings = await check_task(task, open_sandbox(Limits()), seeds=(0,))
    assert [one for one in findings if not one.ok] == []


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of backend ppo."""
    folder = tmp_path_factory.mktemp("ppo") / "run"
    config = {"backend": "ppo", "task": "bucket_brigade", "ppo": SMALL}
    return train(config, folder).folder


@pytest.mark.slow
def test_a_learned_policy_plays_beside_models_and_a_resume_is_exact(
    learned: Path, tmp_path: Path
) -> None:
    config = {
        "task": "bucket_brigade",
        "provider": {"name": "fake"},
        "episodes": 4,
        "search": {"strategy": "single"},
        "sampling": {"max_tokens": 16},
        "options": {"max_nights": 20},
        "agents": {"agent_1": {"plays": str(learned)}, "agent_2": {"plays": "guard"}},
    }
    whole = train(config, tmp_path / "whole")
    assert whole.summary.stopped == "done"
    assert all(len(episode.best_node.score.returns) == 4 for episode in whole.episodes)
    train({**config, "episodes": 2}, tmp_path / "half")
    rest = resume(tmp_path / "half", {"episodes": 4})
    ends = [e.best_node.score.returns for e in whole.episodes]
    assert [e.best_node.score.returns for e in rest.episodes] == ends


def test_a_run_that_plays_is_found_from_another_folder(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(learned.parent)
    config = {
        "backend": "ppo",
        "task": "bucket_brigade",
        "ppo": SMALL,
        "agents": {"agent_1": {"plays": learned.name}, "agent_2": {"plays": "guard"}},
    }
    (learned.parent / "guard").mkdir()  # no run, so the scripted player is meant
    train(config, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert resume(tmp_path / "run", {"ppo": {"steps": 2000}}).summary.stopped == "done"


def test_a_policy_that_has_learned_more_is_told(learned: Path, tmp_path: Path) -> None:
    config = {
        "task": "bucket_brigade",
        "provider": {"name": "fake"},
        "episodes": 1,
        "options": {"max_nights": 20},
        "search": {"strategy": "single"},
        "agents": {"agent_1": {"plays": str(learned)}},
    }
    train(config, tmp_path / "run")
    resume(learned, {"ppo": {"steps": 2000}})
    with pytest.raises(ConfigError, match=r"agents\.agent_1\.plays"):
        resume(tmp_path / "run", {"episodes": 2})


@pytest.mark.parametrize(
    ("task", "plays", "said"),
    [
        ("tldr", {"concise": "guard"}, "as arrays"),
        ("bucket_brigade", {"agent_1": "nobody"}, "nobody"),
        ("bucket_brigade", {"agent_1": "self"}, "backend ppo"),
        ("bucket_brigade", {"agent_1": "runs/nothing"}, "no run lies there"),
        ("bucket_brigade", {"agent_9": "guard"}, "agent_9"),
        ("bucket_brigade", {f"agent_{n}": "guard" for n in range(4)}, "at least one"),
        ("bucket_brigade", {"agent_1": str(Path(__file__).parent)}, "no run lies there"),
    ],
)
def test_what_cannot_play_is_told(task: str, plays: dict[str, str], said: str) -> None:
    with pytest.raises(orchestry.errors.OrchestryError, match=said):
        _set_up(task, **plays)
