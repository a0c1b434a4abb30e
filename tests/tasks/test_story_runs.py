"""Whole runs of story: the team speaks in turn, the better texts win; a local update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import resolve
from orchestry.store.run import Run
from orchestry.task.registry import load_task
from tests.tasks.local_runs import learned_run

TASK = load_task("story")
PROBLEM = next(p for p in TASK.problems("train") if TASK.gold(p))
PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5", "behaviors.enabled=false")


def run(folder: Path, *sets: str) -> Run:
    """Plays a fake team that draws between the gold of one premise and poor texts."""
    gold = TASK.gold(PROBLEM) or {}
    poor = {agent: text[: len(text) // 3] for agent, text in gold.items()}
    said = [(agent, text) for agent in gold for text in (gold[agent], poor[agent])]
    script, bank = folder / "script.jsonl", folder / "bank.jsonl"
    script.write_text("".join(json.dumps({"agent": a, "text": t}) + "\n" for a, t in said))
    bank.write_text(PROBLEM.model_dump_json())
    given = ("task=story", "provider.name=fake", "episodes=2", "search.k_samples=6")
    paths = (f"provider.fake.script={script}", f"options.path={bank}")
    return orchestry.train(resolve([], [*given, *PRICED, *paths, *sets]), folder / "run")


def agents(found: Run) -> set[tuple[str, ...]]:
    """Who spoke at each depth of the trees."""
    nodes = [node for record in found.episodes for node in record.nodes if node.turns]
    return {(str(node.place.stage), *(turn.agent for turn in node.turns)) for node in nodes}


def test_a_run_in_one_round(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.summary.stopped, found.summary.episodes) == ("done", 2)
    assert found.summary.best_reward == pytest.approx(1.0)
    assert found.summary.tags["whole"] >= 1
    assert agents(found) == {("1", "writer"), ("2", "editor"), ("3", "narrator")}
    assert not any(row.purpose == "judge" for row in found.summary.usage)


def test_a_run_in_two_rounds(tmp_path: Path) -> None:
    found = run(tmp_path, "options.rounds=2")
    assert found.summary.stopped == "done"
    assert agents(found) == {
        *(("1", "writer"), ("2", "editor"), ("3", "writer"), ("4", "editor"), ("5", "narrator")),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_local_run_of_three_turns_learns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = learned_run(tmp_path, "task=story")
    assert (found.summary.stopped, found.summary.updates) == ("done", 2)
    assert agents(found) == {("1", "writer"), ("2", "editor"), ("3", "narrator")}
