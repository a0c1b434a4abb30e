"""Whole runs in which agents infer and plan: as all tasks act, resumed, and shown."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.core.thoughts import kind_of
from orchestry.engine.estimate import estimate
from orchestry.engine.run import resume
from orchestry.report.page.content import page_data
from orchestry.report.runs import read_experiments
from orchestry.store.run import Run
from tests.engine.test_run import kill_at

BASE = ("provider.name=fake", "episodes=3", "judge.enabled=false", "behaviors.enabled=false")
PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5")
THOUGHTS = {
    "code_collaboration": ("agents.helper.infer=true", "agents.main.infer=true"),
    "story": ("agents.writer.infer=true", "agents.editor.chain=[plan]"),
    "code_review": ("agents.writer.infer=true", "agents.reviewer.chain=[plan, doubts]"),
}
TURNS = ("task=code_collaboration", "options.turns=2", *THOUGHTS["code_collaboration"])


def config(*sets: str) -> RunConfig:
    return resolve([], [*BASE, *PRICED, *sets])


def kinds(run: Run) -> list[tuple[str, str]]:
    """Of the best trajectory, who was asked for what, in order."""
    record = run.episodes[0]
    turns = [turn for node in record.path(record.best_node.id) for turn in node.turns]
    return [(turn.agent, kind_of(turn.messages[-1].content)) for turn in turns]


def artefacts(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("episodes.jsonl", "rewards.csv")]


@pytest.mark.parametrize("task", THOUGHTS)
@pytest.mark.slow
def test_a_run_asks_and_forecasts_the_calls_before_actions(task: str, tmp_path: Path) -> None:
    chains = "search.strategy=chains", f"task={task}"
    plain, chosen = config(*chains), config(*chains, *THOUGHTS[task])
    run = orchestry.train(chosen, tmp_path / "run")
    forecast, before = estimate(chosen), estimate(plain)
    assert forecast.calls == run.summary.calls > before.calls
    found = [kind for _, kind in kinds(run)]
    assert found.count("belief") == sum("infer" in one for one in THOUGHTS[task])
    assert found.count("step") == {"code_collaboration": 0, "story": 1, "code_review": 2}[task]
    with (run.folder / "rewards.csv").open(newline="") as file:
        header = next(csv.reader(file))
    inferring = [one.split(".")[1] for one in THOUGHTS[task] if "infer" in one]
    assert [name for name in header if "infer" in name] == [
        f"infer_accuracy_{role}" for role in inferring
    ]


@pytest.mark.slow
def test_two_turns_with_both_inferring_and_a_bonus_are_resumed_exactly(tmp_path: Path) -> None:
    sets = (*TURNS, "agents.main.infer_bonus=0.5", "agents.main.chain=[draft]")
    slow = ("provider.fake.latency_s=0.02", "search.episodes_in_flight=1")
    whole = orchestry.train(config(*sets), tmp_path / "whole")
    assert [agent for agent, _ in kinds(whole)] == [
        *("helper", "main", "main", "helper", "main"),
        *("helper", "main", "main", "helper", "main"),
    ]
    assert all(0.0 <= reward <= 1.0 for reward in whole.rewards)
    folder = tmp_path / "killed"
    words = [word for item in (*BASE, *PRICED, *sets, *slow) for word in ("--set", item)]
    kill_at(b'"committed","episode":0', folder, "run", "--run-dir", str(folder), *words)
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)


def test_thoughts_are_marked_in_the_page(tmp_path: Path) -> None:
    run = orchestry.train(config("task=story", *THOUGHTS["story"]), tmp_path / "run")
    blocks = page_data(read_experiments([run.folder]))
    text = "".join(text for name, text in blocks.items() if name.startswith("episode-"))
    assert '"kind":"belief"' in text
    assert '"kind":"step"' in text
