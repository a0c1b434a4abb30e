"""Runs as eval logs, read again by inspect_ai itself.

inspect_ai is not among what CI installs: `pip install inspect_ai`, then `pytest tests/ext/bridges`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai.log import read_eval_log

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.ext.bridges.inspect_log import to_inspect
from orchestry.store.run import Run

TASKS = Path(__file__).parents[2] / "fixtures" / "tasks"


def played(folder: Path, *sets: str) -> Run:
    return orchestry.train(resolve([], ["provider.name=fake", "episodes=3", *sets], {}), folder)


def test_a_log_has_every_trajectory(tmp_path: Path) -> None:
    run = played(tmp_path / "run", "task=tldr")
    log = read_eval_log(str(to_inspect(run)))
    leaves = {
        (f"{episode.episode}-{episode.problem}", epoch): leaf
        for episode in run.episodes
        for epoch, leaf in enumerate(episode.leaves(), start=1)
    }
    assert log.status == "success"
    assert log.eval.created == log.stats.started_at < log.stats.completed_at
    assert log.samples is not None
    assert sorted((str(one.id), one.epoch) for one in log.samples) == sorted(leaves)
    for one in log.samples:
        leaf = leaves[str(one.id), one.epoch]
        assert one.metadata["node"] == leaf.id
        assert one.scores is not None
        assert one.scores["reward"].value == pytest.approx(leaf.score.total)
        assert {part.name for part in leaf.score.parts} < set(one.scores)
    first = log.samples[0]
    agents = [m.metadata["agent"] for m in first.messages if m.role == "assistant" and m.metadata]
    assert set(agents) == {"concise", "detailed"}
    assert first.input in {m.text for m in first.messages}
    assert first.role_usage["concise"].output_tokens > 0
    assert log.results is not None
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(
        sum(leaf.score.total for leaf in leaves.values()) / len(leaves)
    )


def test_calls_of_tools_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDS", str(tmp_path / "noted"))
    run = played(tmp_path / "run", "task=errands", f"task_path=[{TASKS}]")
    log = read_eval_log(str(to_inspect(run, tmp_path / "own.eval")))
    messages = [message for one in log.samples or [] for message in one.messages]
    called = {c.id for m in messages if m.role == "assistant" for c in m.tool_calls or []}
    assert called == {m.tool_call_id for m in messages if m.role == "tool"} != set()


def test_a_run_without_an_episode_says_so(tmp_path: Path) -> None:
    dear = ("prices.fake-1.input=9", "prices.fake-1.output=9", "budget.usd=0.0001")
    run = played(tmp_path / "run", "task=tldr", *dear)
    with pytest.raises(ConfigError, match="has no finished episode"):
        to_inspect(run.folder)
