"""Code review on problems whose tests are a pytest file: from a folder, and from JSON lines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import orchestry
from orchestry import Limits, Tools
from orchestry.cli import main
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.core.types import SPLITS, Score
from orchestry.sandbox import open_sandbox
from orchestry.task.registry import load_task
from tests.tasks.local_runs import learned_run

GOLD = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("empty")
        return self.items.pop()
"""
TESTS = """import pytest
from solution import Stack

@pytest.fixture
def stack():
    made = Stack()
    for item in (1, 2):
        made.push(item)
    return made

@pytest.mark.parametrize("n, items", [(1, [2]), (2, [2, 1])])
def test_pop(stack, n, items):
    assert [stack.pop() for _ in range(n)] == items

def test_empty():
    with pytest.raises(IndexError):
        Stack().pop()

def test_apart(stack):
    assert Stack().items == [] and stack.items == [1, 2]
"""


@pytest.fixture(name="bank")
def _bank(tmp_path: Path) -> Path:
    for split in SPLITS:
        home = tmp_path / "bank" / split / f"stack_{split}"
        home.mkdir(parents=True)
        (home / "prompt.md").write_text("Write the class Stack with push and pop.\n")
        (home / "test_solution.py").write_text(TESTS)
        (home / "solution.py").write_text(GOLD)
        (home / "starter.py").write_text("class Stack:\n    pass\n")
    return tmp_path / "bank"


def scored(bank: Path, code: str) -> Score:
    task = load_task("code_review", options={"bank": str(bank)})
    (problem,) = task.problems("train")
    state = task.step(task.reset(problem, 0), {"writer": f"```python\n{code}\n```"})

    async def evaluated() -> Score:
        async with open_sandbox(Limits()) as sandbox:
            return await task.evaluate(state, Tools(sandbox=sandbox))

    return asyncio.run(evaluated())


@pytest.mark.slow
def test_the_task_holds(bank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["tasks", "check", "code_review", "--set", f"options.bank={bank}"])
    assert exited.value.code == 0, capsys.readouterr()


@pytest.mark.slow
def test_a_gold_that_fails_is_found(bank: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bank / "dev" / "stack_dev" / "solution.py"
    path.write_text(GOLD.replace("IndexError", "KeyError"))
    with pytest.raises(SystemExit) as exited:
        main(["tasks", "check", "code_review", "--set", f"options.bank={bank}"])
    assert exited.value.code == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "gold of problem 'stack_dev' scores" in shown
    assert "The code passes 3 of 4 tests. test_empty: KeyError: 'empty'" in shown


@pytest.mark.slow
def test_parametrized_cases_count_each(bank: Path) -> None:
    assert scored(bank, GOLD).parts[0].value == 1.0
    found = scored(bank, GOLD.replace("self.items.pop()", "self.items.pop(0)"))
    assert found.parts[0].value == 0.5
    assert "passes 2 of 4 tests. test_pop[1-items0]: assert [1] == [2]" in found.feedback
    assert scored(bank, "class Stack:\n    pass").parts[0].value == 0.0
    assert scored(bank, "import os\nos._exit(0)").total == 0.0


def test_agents_see_the_starter_and_no_test(bank: Path) -> None:
    task = load_task("code_review", options={"bank": str(bank)})
    (problem,) = task.problems("train")
    seen = task.observe(task.reset(problem, 0), "writer")
    start = "class Stack:\n    pass"
    assert seen == f"Write the class Stack with push and pop.\n\n```python\n{start}\n```"


def test_json_lines_without_gold(tmp_path: Path) -> None:
    rows = [
        {"id": split, "prompt": "A stack.", "split": split, "data": {"pytest": TESTS}}
        for split in SPLITS
    ]
    path = tmp_path / "bank.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert scored(path, GOLD).total == pytest.approx(0.7)  # a draft: nobody has reviewed it
    task = load_task("code_review", options={"bank": str(path)})
    assert task.gold(task.problems("dev")[0]) is None


def test_a_task_that_takes_none_says_so(bank: Path) -> None:
    task = load_task("code_collaboration", options={"bank": str(bank)})
    with pytest.raises(ConfigError, match="stack_train has no entry_point, signature in its data"):
        task.problems("train")


def test_pytest_missing_is_said_at_once(bank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("code_review", options={"bank": str(bank)})
    monkeypatch.setattr("orchestry.task.generated.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pytest is not installed, and runs the tests of"):
        task.problems("train")


def test_a_run(bank: Path, tmp_path: Path) -> None:
    sets = ["task=code_review", f"options.bank={bank}", "provider.name=fake", "episodes=2"]
    run = orchestry.train(resolve([], sets, {}), tmp_path / "run")
    assert len(run.episodes) == 2
    assert {one.problem for one in run.episodes} == {"stack_train"}


@pytest.mark.slow
def test_a_run_of_backend_local(bank: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = learned_run(tmp_path, "task=code_review", f"options.bank={bank}")
    assert {one.problem for one in run.episodes} == {"stack_train"}
