"""A run directory that version 0.1.0 wrote is read, reported, evaluated and continued.

Its episodes.jsonl has a score's parts, feedback and tags beside the other fields of a node.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.types import Part, Score
from orchestry.engine.run import resume
from orchestry.report.examples import trajectories
from orchestry.report.page import write_page
from orchestry.report.runs import read_experiments
from orchestry.store.records import Summary
from orchestry.store.run import Run

FIXTURES = Path(__file__).parents[1] / "fixtures"
OLD = FIXTURES / "recorded" / "words_0.1.0"
TASKS = FIXTURES / "tasks"
REWARDS = [0.23, 0.74]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]


def test_its_scores_are_whole(old: Path) -> None:
    first, second = orchestry.load_run(old).episodes
    assert [first.reward, second.reward] == REWARDS
    parts = (Part(name="quality", value=0.74),)
    assert second.best_node.score == Score(parts=parts, tags=("even",))
    for record in (first, second):
        assert record.best_node.score.total == record.reward
        assert record.nodes[0].score == Score(parts=())
        assert sum(record.tags().values()) <= len(list(record.leaves()))


def test_its_summary_has_the_words_of_now(old: Path) -> None:
    found = Run(old).summary
    assert found.mean_reward == found.mean_trajectory_reward == 0.405
    assert found.best_of_k == 0.485
    assert Summary.model_validate_json(found.model_dump_json()) == found


def test_it_is_reported(old: Path, tmp_path: Path) -> None:
    experiments = read_experiments([old])
    assert not experiments[0].missing
    assert "0.740" in trajectories(experiments[0])
    assert "0.74" in write_page(experiments, tmp_path).read_text()


def test_it_is_evaluated(old: Path) -> None:
    found = orchestry.evaluate(old, "test", samples=2, episodes=2, task_path=[TASKS])
    assert found.folder.is_relative_to(old)
    assert [record.split for record in found.episodes] == ["test", "test"]


def test_it_is_gone_on_with_and_its_lines_are_made_new(old: Path) -> None:
    before = lines(old)
    run = resume(old, {"episodes": 3, "task_path": [str(TASKS)]}, accept=True)
    assert run.best_of_k[:2] == REWARDS
    assert (run.summary.stopped, run.summary.episodes) == ("done", 3)
    for old_line, line in zip(before, lines(old), strict=False):
        for was, node in zip(old_line.pop("nodes"), line.pop("nodes"), strict=True):
            score = node.pop("score")
            assert {**node, **score} == was
        assert [group.pop("trials") for group in line["groups"]] == [[]] * len(line["groups"])
        assert line == old_line
