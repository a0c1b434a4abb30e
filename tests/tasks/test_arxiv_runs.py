"""Whole runs of arxiv: both expand at once, the better pair wins; the data set; a local update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import TaskError
from orchestry.core.types import SPLITS
from orchestry.store.run import Run
from orchestry.task.registry import load_task
from tests.tasks.local_runs import learned_run

TASK = load_task("arxiv")
PROBLEM = next(p for p in TASK.problems("train") if TASK.gold(p))
BASE = ("task=arxiv", "provider.name=fake", "episodes=2", "search.k_samples=8")
PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5", "behaviors.enabled=false")


def run(folder: Path, others: tuple[str, ...], *sets: str) -> Run:
    """Plays a fake team that draws between the gold of one abstract, twice, and other texts."""
    gold = TASK.gold(PROBLEM) or {}
    said = [(agent, text) for agent in gold for text in (gold[agent], gold[agent], *others)]
    lines = [{"agent": agent, "text": text} for agent, text in said]
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config: RunConfig = resolve([], [*BASE, *PRICED, f"provider.fake.script={script}", *sets])
    return orchestry.train(config, folder / "run")


def test_a_run_on_its_own_bank(tmp_path: Path) -> None:
    bank = tmp_path / "bank.jsonl"
    bank.write_text(PROBLEM.model_dump_json())
    found = run(tmp_path, (PROBLEM.prompt,), f"options.path={bank}")
    assert (found.summary.stopped, found.summary.episodes) == ("done", 2)
    assert found.summary.best_reward == 1.0
    assert found.summary.tags["whole"] >= 1
    assert found.summary.tags["copied"] >= 1
    nodes = [node for record in found.episodes for node in record.nodes if node.turns]
    assert all({turn.agent for turn in node.turns} == {"background", "method"} for node in nodes)
    seen = {turn.messages[-1].content for node in nodes for turn in node.turns}
    assert seen == {PROBLEM.prompt}
    assert not any(row.purpose == "judge" for row in found.summary.usage)


def copy_of(folder: Path, *abstracts: object) -> Path:
    path = folder / "arxiv.jsonl"
    path.write_text("".join(json.dumps({"abstract_text": text}) + "\n" for text in abstracts))
    return path


def test_a_run_on_the_data_set(tmp_path: Path) -> None:
    path = copy_of(tmp_path, *(f" {PROBLEM.prompt} Number {n}.\n" for n in range(40)))
    found = run(tmp_path, (), "options.bank=arxiv", f"options.path={path}", "options.rows=30")
    assert (found.summary.stopped, found.summary.episodes) == ("done", 2)
    assert found.summary.best_reward == pytest.approx(1.0)


def test_rows_of_the_data_set_become_problems(tmp_path: Path) -> None:
    path = copy_of(tmp_path, " One.\n", "Two.", "One.", 3)
    task = load_task("arxiv", options={"bank": "arxiv", "path": str(path), "rows": 3})
    problems = [problem for split in SPLITS for problem in task.problems(split)]
    assert sorted(problem.prompt for problem in problems) == ["One.", "Two."]
    assert all(p.id.startswith("arxiv_") and task.gold(p) is None for p in problems)
    whole = load_task("arxiv", options={"bank": "arxiv", "path": str(path)})
    with pytest.raises(TaskError, match=r"line 4 has no text in 'abstract_text'.*OpenMLRL/arXiv"):
        whole.problems("train")
    with pytest.raises(TaskError, match=r"a copy of a data set needs options\.bank: arxiv"):
        load_task("arxiv", options={"path": str(path)}).problems("train")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_local_run_draws_both_texts_at_once_and_learns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = learned_run(tmp_path, "task=arxiv")
    assert (found.summary.stopped, found.summary.updates) == ("done", 2)
    nodes = [node for record in found.episodes for node in record.nodes if node.turns]
    assert len(nodes) == 4 * 2
    assert all([turn.agent for turn in node.turns] == ["background", "method"] for node in nodes)
