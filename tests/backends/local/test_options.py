"""What a run's config says of learning reaches its update, on episodes of two turns."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

import orchestry
from tests.backends.letters import EVERY, GROUP, ROLES, TASK, config, learned, write_task

pytestmark = pytest.mark.usefixtures("one_thread")

TWO_TURNS = TASK.replace("() if state.said else", "() if len(state.said) == 4 else").replace(
    "said=tuple(", "said=state.said + tuple("
)
OPTIONS = (
    "learn.discount=0.5",
    "learn.rewards=final",
    "learn.grouping=agent",
    "learn.baseline=leave_one_out",
    "learn.normalise=true",
    "learn.reduce=mean",
    "search.joint=cross",
    "sampling.temperature=1.0",
)


@pytest.fixture(scope="module")
def two_turns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks"), TWO_TURNS)


@pytest.fixture(scope="module")
def plain_loss(model: str, two_turns: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    return loss(model, two_turns, tmp_path_factory.mktemp("runs") / "run")


def loss(model: str, tasks: Path, folder: Path, *more: str) -> float:
    """Of a run's only update."""
    chosen = config(model, tasks, f"episodes={EVERY}", "learn.group_size=2", *more)
    (update,) = learned(orchestry.train(chosen, folder))
    assert update.state["samples"] > 0
    return float(update.state["loss"])


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_learning_is_not_ignored(
    option: str, plain_loss: float, model: str, two_turns: Path, tmp_path: Path
) -> None:
    """Ignored, it would give by the same seed the very update of the defaults."""
    assert loss(model, two_turns, tmp_path / "run", option) != plain_loss


def test_combined_actions_count_once(model: str, two_turns: Path, tmp_path: Path) -> None:
    """Two answers an agent make four pairs, and each pair draws one more."""
    few = (f"episodes={EVERY}", "learn.group_size=2", "search.joint=cross")
    (update,) = learned(orchestry.train(config(model, two_turns, *few), tmp_path / "run"))
    assert update.state["samples"] + update.state["skipped"] == EVERY * len(ROLES) * (2 + 4)


def test_a_reward_without_variance_costs_no_forward_pass(model: str, tmp_path: Path) -> None:
    flat = TWO_TURNS.replace("quality=", "quality=0.5 + 0 * ")
    tasks = write_task(tmp_path / "tasks", flat)
    run = orchestry.train(config(model, tasks, f"episodes={EVERY}"), tmp_path / "run")
    (update,) = learned(run)
    assert (update.state["samples"], update.state["tokens"]) == (0, 0)
    assert update.state["skipped"] == EVERY * GROUP * 2 * len(ROLES)
    assert set(update.state["norms"].values()) == {0.0}
