"""A run that is evaluated on dev while it learns."""

from __future__ import annotations

import io
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("torch")
pytest.importorskip("peft")

import orchestry
from orchestry.cli.show import summary_panel
from orchestry.engine import evaluate, prepare, resume
from orchestry.errors import ConfigError
from orchestry.estimate import estimate
from orchestry.journal import Answered
from orchestry.store import Run
from tests.backends.letters import (
    GROUP,
    ROLES,
    TASK,
    artefacts,
    config,
    learned,
    write_task,
)

pytestmark = pytest.mark.usefixtures("one_thread")
PROBLEMS = 3
SETS = (
    "episodes=24",
    "learn.every=4",
    "learn.evaluate_every=2",
    f"learn.evaluate_problems={PROBLEMS}",
    "learn.keep=1",
)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The letters, of which a trajectory with at least two e is called rich."""
    reward = "return self.score(quality=text.count('e') / max(1, len(text)))"
    rich = reward[:-1] + ", tags=('rich',) if text.count('e') > 1 else ())"
    source = TASK.replace(reward.replace("'e'", '"e"'), rich)
    assert source != TASK
    return write_task(tmp_path_factory.mktemp("tasks"), source)


@pytest.fixture(scope="module")
def watched(model: str, tagged: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six updates, evaluated after the second, the fourth and the sixth."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return orchestry.train(config(model, tagged, *SETS), folder)


def states(run: Run) -> list[dict[str, Any]]:
    return [update.state for update in learned(run)]


def test_a_run_is_evaluated_before_its_first_update_and_after_every_second(watched: Run) -> None:
    assert ["dev_before" in state for state in states(watched)] == [True] + 5 * [False]
    assert ["dev" in state for state in states(watched)] == 3 * [False, True]
    scores = [state["dev"]["reward"] for state in states(watched) if "dev" in state]
    assert scores[-1] > states(watched)[0]["dev_before"]["reward"] + 0.2
    assert states(watched)[-1]["dev"]["tags"]["rich"] > 0.5
    calls = [event for event in watched.events if isinstance(event, Answered)]
    assert sum(event.purpose == "dev" for event in calls) == 4 * PROBLEMS * GROUP * len(ROLES)
    assert sum(event.purpose == "act" for event in calls) == 24 * GROUP * len(ROLES)


def test_the_best_checkpoint_stays_however_old_it_is(watched: Run) -> None:
    scores = {n: s["dev"]["reward"] for n, s in enumerate(states(watched), 1) if "dev" in s}
    best = states(watched)[-1]["best"]
    assert best == {
        "update": max(scores, key=lambda update: scores[update]),
        "reward": max(scores.values()),
        "checkpoint": f"checkpoints/{4 * best['update']:06d}",
    }
    assert (watched.folder / best["checkpoint"] / "optimizer.pt").exists()


def test_the_summary_and_the_manifest_say_what_there_was(watched: Run) -> None:
    scores = [state["dev"]["reward"] for state in states(watched) if "dev" in state]
    before = states(watched)[0]["dev_before"]["reward"]
    rewards = {"before": before, "last": scores[-1], "best": max(scores)}
    assert watched.summary.dev_rewards == rewards
    assert "6 updates" in (text := panel(watched))
    assert f"before {before:.3f}" in text
    assert "library" not in text
    manifest = json.loads((watched.folder / "manifest.json").read_text())
    assert manifest["device"] == "cpu"
    assert {"torch", "transformers"} < manifest["packages"].keys()


def panel(run: Run) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(summary_panel(run.summary))
    return console.export_text()


def test_nothing_that_was_learned_depends_on_being_watched(
    watched: Run, model: str, tagged: Path, tmp_path: Path
) -> None:
    alone = orchestry.train(
        config(model, tagged, *SETS, "learn.evaluate_every=null"), tmp_path / "run"
    )
    assert alone.episodes == watched.episodes


def test_a_run_in_two_parts_evaluates_as_a_whole_one(
    watched: Run, model: str, tagged: Path, tmp_path: Path
) -> None:
    part = orchestry.train(config(model, tagged, *SETS, "episodes=10"), tmp_path / "run")
    resume(part.folder, {"episodes": 24})
    assert artefacts(part.folder) == artefacts(watched.folder)


def test_dev_is_evaluated_as_a_later_evaluation_finds_it(watched: Run) -> None:
    """Of the same weights on the same problems; only the seeds differ."""
    later = evaluate(watched, split="dev")
    found = fmean(episode.mean_leaf_reward for episode in later.episodes)
    assert later.summary.mean_trajectory_reward == pytest.approx(found)
    assert (later.summary.mean_reward or 0.0) > found  # which is of the best of each group
    assert found == pytest.approx(states(watched)[-1]["dev"]["reward"], abs=0.2)


def test_the_dry_run_counts_the_evaluations(model: str, tagged: Path) -> None:
    calls = (24 + 4 * PROBLEMS) * GROUP * len(ROLES)
    assert estimate(config(model, tagged, *SETS)).calls == calls


def test_a_task_without_dev_problems_is_refused(model: str, tmp_path: Path) -> None:
    source = TASK.replace("for n in range(4)]", "for n in range(4) if split != 'dev']")
    tasks = write_task(tmp_path / "tasks", source)
    with pytest.raises(ConfigError, match="no dev problems to evaluate on: add some, or leave"):
        prepare(config(model, tasks, *SETS))
