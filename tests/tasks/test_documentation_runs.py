"""Whole runs of documentation and research, with a scripted team and with weights that learn."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import resolve
from orchestry.store.run import Run
from orchestry.task.registry import load_task

PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5", "behaviors.enabled=false")
BASE = ("provider.name=fake", "episodes=2", "search.k_samples=4")


def run(folder: Path, task: str, answers: Iterable[tuple[str, str]], *sets: str) -> Run:
    """Plays a fake team that draws between the answers given for each agent."""
    script = folder / "script.jsonl"
    lines = (json.dumps({"agent": agent, "text": text}) for agent, text in answers)
    script.write_text("".join(f"{line}\n" for line in lines))
    sets = (f"task={task}", *BASE, *PRICED, f"provider.fake.script={script}", *sets)
    return orchestry.train(resolve([], sets), folder / "run")


@pytest.mark.parametrize(
    ("name", "tags"), [("documentation", {"whole", "no_sections"}), ("research", {"whole"})]
)
def test_a_run_on_its_own_bank(name: str, tags: set[str], tmp_path: Path) -> None:
    task = load_task(name)
    problem = next(one for one in task.problems("train") if task.gold(one))
    bank = tmp_path / "bank.jsonl"
    bank.write_text(problem.model_dump_json())
    gold = task.gold(problem) or {}
    answers = [(agent, text) for agent, said in gold.items() for text in (said, said, "LGTM")]
    found = run(tmp_path, name, answers, f"options.path={bank}")
    assert (found.summary.stopped, found.summary.episodes) == ("done", 2)
    assert found.summary.best_reward == pytest.approx(1.0)
    assert tags <= set(found.summary.tags)
    nodes = [node for record in found.episodes for node in record.nodes if node.turns]
    assert {turn.agent for node in nodes for turn in node.turns} == set(gold)
    assert not any(row.purpose == "judge" for row in found.summary.usage)


def test_a_run_on_a_folder_of_ones_own(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(12):
        text = f"def scaled(value):\n    return value * {number + 2}\n"
        (source / f"m{number}.py").write_text(text)
    said = "### scaled\nReturn a multiple of the given number.\n\nvalue: the number to begin with\n"
    answers = [("documenter", f"{said}\n>>> scaled(1)\n{n}") for n in (2, 3, 4)]
    found = run(
        tmp_path, "documentation", [*answers, ("reviewer", "LGTM")], f"options.path={source}"
    )
    assert (found.summary.stopped, found.summary.episodes) == ("done", 2)
    assert found.summary.best_reward is not None
    assert found.summary.best_reward > 0.3
    assert "covered" not in found.summary.tags or found.summary.tags["wrong_examples"] >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["documentation", "research"])
def test_weights_learn_from_it(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_folder

    model = tiny_folder(tmp_path / "model")
    shape = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 8192}))
    sets = (f"task={name}", "backend=local", f"provider.model={model}", "episodes=2")
    small = ("learn.every=2", "learn.group_size=2", "sampling.max_tokens=8")
    found = orchestry.train(resolve([], [*sets, *small]), tmp_path / "run")
    assert (found.summary.stopped, found.summary.updates) == ("done", 1)
