"""Whole runs of tldr: both write at once, the better pair wins; the data set; the judge is off."""

from __future__ import annotations

import json
from pathlib import Path

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.store.run import Run
from orchestry.task.registry import load_task

TASK = load_task("tldr")
PROBLEM = next(p for p in TASK.problems("train") if TASK.gold(p))
BASE = ("task=tldr", "provider.name=fake", "episodes=2", "search.k_samples=8")
PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5", "behaviors.enabled=false")


def run(folder: Path, others: tuple[str, ...], *sets: str) -> Run:
    """Plays a fake team that draws between the gold of one post, twice, and other texts."""
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
    assert all({turn.agent for turn in node.turns} == {"concise", "detailed"} for node in nodes)
    seen = {turn.messages[-1].content for node in nodes for turn in node.turns}
    assert seen == {PROBLEM.prompt}
    assert not any(row.purpose == "judge" for row in found.summary.usage)


def test_a_run_on_the_data_set(tmp_path: Path) -> None:
    copy = tmp_path / "tldr.jsonl"
    prompts = [f"TITLE: Post {n}\n\nPOST: {PROBLEM.prompt}\n\nTL;DR:" for n in range(40)]
    copy.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    found = run(tmp_path, (), "options.bank=tldr", f"options.path={copy}", "options.rows=30")
    assert (found.summary.stopped, found.summary.episodes) == ("done", 2)
    assert found.summary.best_reward == 1.0
    assert "whole" in found.summary.tags
