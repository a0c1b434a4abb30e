"""Programs that run tools themselves: what a run shows, exports and learns of the calls.

And what it says of the agents' credit, which nobody measures there.
"""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import orchestry
from orchestry.backends.api.contrasts import Leaf, _side, contrasts
from orchestry.cli.show import _best
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.types import Turn
from orchestry.ext.distil.chats import export_chats
from orchestry.ext.distil.examples import examples, unlike
from orchestry.report.examples import trajectories
from orchestry.report.runs import read_experiments
from orchestry.rollout.credit import blame
from orchestry.store.records import UNMEASURED
from orchestry.store.run import Run

for package in ("aiohttp", "openai"):  # imported before a program's time runs
    pytest.importorskip(package)
TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
SETS = ("task=chatter", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=4")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of a writer that calls `count`; only read."""
    folder = tmp_path_factory.mktemp("runs") / "called"
    return orchestry.train(resolve([], [*SETS, "options.way=tools", "seed=3"], {}), folder)


def turns(run: Run) -> list[Turn]:
    return [turn for one in run.episodes for node in one.nodes for turn in node.turns]


def shown(run: Run) -> str:
    """What --show-best would print of every trajectory."""
    out = StringIO()
    for record in run.episodes:
        for leaf in record.leaves():
            one = record.model_copy(update={"best": leaf.id})
            Console(file=out, width=200).print(_best(one))
    return out.getvalue()


def test_the_calls_are_shown(run: Run) -> None:
    (call, *_) = [call for turn in turns(run) for call in turn.completion.calls]
    assert call.given["of"]
    (experiment,) = read_experiments([run.folder])
    written = trajectories(experiment)
    assert "[called count {" in written
    assert "*an empty answer*" not in written
    assert "[called count {" in shown(run)


def test_two_calls_are_no_equal_moves(run: Run) -> None:
    found = contrasts(run.episodes, "writer", 1.0)
    first = [pair for pair in found if not pair.winner.answered and not pair.loser.answered]
    assert first
    for pair in found:
        assert pair.winner.told != pair.loser.told
    (side, *_) = (pair.winner for pair in first)
    assert side.told.startswith("[called count {")


def test_what_a_program_told_its_agent_is_seen_and_is_no_example(run: Run) -> None:
    pairs = [(record, node) for record in run.episodes for node in record.nodes]
    sides = [
        _side("writer", Leaf(record, node, 0.5), node, turn)
        for record, node in pairs
        for turn in node.turns
        if turn.messages[-1].role == "tool"
    ]
    assert sides
    assert all(side.saw.endswith(": three]") and "\n[called count {" in side.saw for side in sides)
    assert not any(side.answered for side in sides)


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "writer.jsonl").read_text().splitlines()]


def test_exported_chats_have_calls_results_and_tools(run: Run, tmp_path: Path) -> None:
    export_chats(run, tmp_path / "openai", "openai", top=1.0)
    lines = _lines(tmp_path / "openai")
    assert any(line["messages"][-1].get("tool_calls") for line in lines)
    for line in lines:
        assert [tool["function"]["name"] for tool in line["tools"]] == ["count"]
        called = [call for one in line["messages"] for call in one.get("tool_calls", ())]
        told = [one["tool_call_id"] for one in line["messages"] if one["role"] == "tool"]
        assert set(told) <= {call["id"] for call in called}
        assert all(json.loads(call["function"]["arguments"])["of"] for call in called)
    export_chats(run, tmp_path / "hf", "hf", top=1.0)
    for line, other in zip(_lines(tmp_path / "hf"), lines, strict=True):
        assert [*line] == ["prompt", "completion", "tools", "problem", "reward", "model"]
        chat = [*line["prompt"], *line["completion"]]
        assert [one["role"] for one in chat] == [one["role"] for one in other["messages"]]
        assert all(one["name"] == "count" for one in chat if one["role"] == "tool")
        for call in (call for one in chat for call in one.get("tool_calls", ())):
            assert call["function"]["arguments"]["of"]


def test_calls_of_a_run_that_did_not_write_tools_down_are_not_exported(
    run: Run, tmp_path: Path
) -> None:
    old = shutil.copytree(run.folder, tmp_path / "old")
    records = [json.loads(line) for line in (old / "episodes.jsonl").read_text().splitlines()]
    for turn in (turn for one in records for node in one["nodes"] for turn in node["turns"]):
        turn.pop("tools", None)
    (old / "episodes.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    with pytest.raises(ConfigError, match="calls tools in old, a run of an older orchestry"):
        export_chats(old, tmp_path / "out", top=1.0)


def test_behaviours_in_a_programs_prompt_cannot_be_dropped(run: Run) -> None:
    with pytest.raises(ConfigError, match="leave out --drop-behaviors"):
        examples([run], drop_behaviors=True)
    assert not unlike(examples([run]))


def test_where_nothing_was_compared_no_credit_is_shown(run: Run, tmp_path: Path) -> None:
    assert {one.credits for one in run.episodes} == {()}
    assert blame(run.episodes) == {}
    (experiment,) = read_experiments([run.folder])
    assert trajectories(experiment).count(f"Credit: {UNMEASURED}.") > 1
    assert f"credit by agent: {UNMEASURED}" in shown(run)
    export_chats(run, tmp_path / "out", top=1.0)
    assert "| not measured |" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"no credit was measured in .*: choose another --by"):
        export_chats(run, tmp_path / "none", by="credit")


@pytest.mark.slow
def test_credit_in_equal_parts_needs_no_more_than_rollouts(tmp_path: Path) -> None:
    sets = [*SETS, "options.way=plain", "credit.method=equal"]
    run = orchestry.train(resolve([], sets, {}), tmp_path / "run")
    record = run.episodes[0]
    best = {one.agent: one.credit for one in record.credits if one.leaf == record.best}
    part = (record.reward - record.mean_leaf_reward) / 2
    assert best == pytest.approx({"writer": part, "critic": part})
    assert part > 0
