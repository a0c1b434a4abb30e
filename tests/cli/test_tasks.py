"""`orchestry tasks`, as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestry.cli import main
from orchestry.core.types import SPLITS
from orchestry.task.base import Transcript
from orchestry.task.registry import load_task


def orchestry(*args: object) -> int:
    """Runs the command line in this process; returns its exit code."""
    with pytest.raises(SystemExit) as exit:
        main([str(arg) for arg in args])
    assert isinstance(exit.value.code, int)
    return exit.value.code


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list_shows_the_bundled_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "list") == 0
    assert "code_review" in capsys.readouterr().out


def test_list_as_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "list", "--json") == 0
    tasks = {task["name"]: task for task in json.loads(capsys.readouterr().out)["tasks"]}
    assert tasks["code_review"]["source"] == "bundled"
    assert tasks["code_review"]["description"]


def test_a_new_task_keeps_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "new", "my_task") == 0
    said = capsys.readouterr().out
    assert "orchestry tasks check my_task\n" in said
    assert "orchestry run --task my_task --episodes 5\n" in said
    assert len(Path("tasks/my_task/task.py").read_text().splitlines()) <= 40
    assert orchestry("tasks", "check", "my_task") == 0
    assert "Task my_task keeps every rule." in capsys.readouterr().out


def test_a_new_task_elsewhere_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "new", "haiku", "--dir", "mine") == 0
    assert "check haiku --task-path mine\n" in capsys.readouterr().out
    assert orchestry("tasks", "check", "haiku", "--task-path", "mine", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert all(finding["ok"] for finding in answer["findings"])


def test_a_new_task_runs_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "new", "my_task") == 0
    capsys.readouterr()
    args = ("--task", "my_task", "--episodes", 2, "--provider", "fake", "--json")
    assert orchestry("run", *args) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "my_task"


def test_a_new_task_pays_for_no_cheap_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "new", "my_task") == 0
    capsys.readouterr()
    assert orchestry("tasks", "check", "my_task", "--json") == 0
    findings = {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    for rule in ("nothing", "prompt", "other gold"):
        assert "earn 0.00 in the mean, 0.00 at most" in findings[rule]["detail"]


CHEAP: dict[str, Callable[[Any], str]] = {
    "any word": lambda data: "word",
    "words in a row": lambda data: ", ".join(data["words"]),
    "every word there is": lambda data: "light tilt axis sun wing lift dense water gas " * 9,
    "the words in a flood": lambda data: f"{'It is that and this. ' * 20}{data['gold']}",
}


@pytest.mark.parametrize("name", CHEAP)
async def test_a_new_task_pays_little_for_a_trick(name: str) -> None:
    assert orchestry("tasks", "new", "my_task") == 0
    task: Any = load_task("my_task", task_path=[Path("tasks")])
    for split in SPLITS:
        for problem in task.problems(split):
            said = Transcript(problem, (("editor", CHEAP[name](problem.data)),))
            most = 0.8 if "flood" in name else 0.0
            assert (await task.evaluate(said, None)).total <= most + 1e-9


def test_check_says_what_it_could_not_try(capsys: pytest.CaptureFixture[str]) -> None:
    orchestry("tasks", "new", "my_task")
    source = Path("tasks/my_task/task.py")
    source.write_text(source.read_text().replace("return read_problems", "1 / 0  #"))
    assert orchestry("tasks", "check", "my_task") == 1
    said = capsys.readouterr().out
    assert "FAIL  splits: problems('train') raised ZeroDivisionError" in said
    assert "not tried  nothing: since the task breaks 'splits'" in said
    assert said.count("\nok ") == 2  # the rubric, and that there are no tools
    assert "Task my_task breaks 1 of 19 rules (16 not tried)." in said
    assert orchestry("tasks", "check", "my_task", "--json") == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["ok"] for one in found].count(None) == 16


ROWS = [
    {"question": f"Half of {2 * n}?", "answer": f"That is easy.\n#### {n}"} for n in range(1, 6)
]


@pytest.mark.parametrize("given", [(), ("--columns", "prompt=question,gold=answer")])
def test_a_new_task_of_a_file_keeps_every_rule(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    assert orchestry("tasks", "new", "sums", "--from", "data.jsonl", *given) == 0
    gold = "gold" if given else "answer"
    said = capsys.readouterr().out
    assert "of its 5 problems are 3 train, 1 dev, 1 test." in said
    assert f"the right answer is in '{gold}'" in said
    assert orchestry("tasks", "check", "sums") == 0
    assert "Task sums keeps every rule." in capsys.readouterr().out


def test_a_new_task_of_a_csv(capsys: pytest.CaptureFixture[str]) -> None:
    cells = "".join(f'"Half,\n of {2 * n}?",{n}\r\n' for n in range(1, 6))
    Path("data.csv").write_text(f"\ufeffquestion,answer\r\n{cells}", encoding="utf-8", newline="")
    assert orchestry("tasks", "new", "sums", "--from", "data.csv") == 0
    assert "Taken: prompt=question; the right answer is in 'answer'." in capsys.readouterr().out
    first = json.loads(Path("tasks/sums/problems.jsonl").read_text().splitlines()[0])
    assert (first["prompt"], first["data"]) == ("Half,\n of 2?", {"answer": "1"})


@pytest.mark.parametrize(
    ("row", "given", "found"),
    [
        ({"q": "?", "answer": "x"}, (), "has no column 'prompt', only q, answer"),
        ({"text": "?", "a": 1, "b": 2}, (), "right answer, only a, b: name it, as in --columns"),
        ({"text": "?"}, (), "right answer, only prompts: name it"),
        ({"text": "?"}, ("--columns", "prompt=text,gold=b"), "has no column 'b', only text"),
    ],
)
def test_a_file_whose_columns_are_unknown(
    row: object, given: tuple[str, ...], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("data.jsonl").write_text(json.dumps(row))
    assert orchestry("tasks", "new", "sums", "--from", "data.jsonl", *given) == 2
    assert found in capsys.readouterr().err
    assert orchestry("tasks", "new", "sums", "--columns", "prompt=text") == 2
    assert "name it with --from FILE" in capsys.readouterr().err
    assert not Path("tasks/sums").exists()


def test_check_fails_on_a_broken_rule(capsys: pytest.CaptureFixture[str]) -> None:
    orchestry("tasks", "new", "my_task")
    source = Path("tasks/my_task/task.py")
    source.write_text(source.read_text().replace("coverage=coverage", "coverage=2 * coverage"))
    assert orchestry("tasks", "check", "my_task") == 1
    said = capsys.readouterr().out
    assert "FAIL  gold: evaluate gave a total of 1.8 on problem q1" in said
    assert "Task my_task breaks" in said


def test_check_says_which_answer_a_task_raises_on(capsys: pytest.CaptureFixture[str]) -> None:
    orchestry("tasks", "new", "my_task")
    source = Path("tasks/my_task/task.py")
    head = "    async def evaluate(self, state: Transcript, tools: Tools) -> Score:\n"
    odd = "        state.last('drafter')[:9] == '9' * 9 and 1 / 0\n"
    source.write_text(source.read_text().replace(head, head + odd))
    assert orchestry("tasks", "check", "my_task") == 1
    said = capsys.readouterr().out
    found = "drafter answers with a huge decimal number: evaluate raised ZeroDivisionError"
    assert f"FAIL  any answer: {found}" in said
    assert "Traceback" not in said
    assert "ends its trajectory" in said
    assert orchestry("tasks", "check", "my_task", "--verbose") == 1
    assert "Traceback" in capsys.readouterr().out


def test_new_refuses_to_overwrite_and_odd_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "new", "my_task") == 0
    for name, reason in (("my_task", "exists"), ("my-task", "can't name"), ("class", "can't name")):
        assert orchestry("tasks", "new", name) == 2
        assert reason in capsys.readouterr().err


def test_new_hides_another_task_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    for where in ((), ("--dir", "mine")):
        assert orchestry("tasks", "new", "tldr", *where) == 2
        assert "there is a task 'tldr' (" in capsys.readouterr().err
        assert orchestry("tasks", "new", "tldr", *where, "--force") == 0
    assert orchestry("tasks", "new", "tldr", "--force") == 2  # what is there stays


@pytest.mark.parametrize(
    ("args", "near"),
    [(("rnu",), "run"), (("tasks", "chek"), "check"), (("baselines", "lst"), "list")],
)
def test_an_unknown_command_gets_the_nearest_one(
    args: tuple[str, ...], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert orchestry(*args) == 2
    assert f"unknown command '{args[-1]}': did you mean '{near}'?" in capsys.readouterr().err


def test_an_unknown_task_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "check", "code_reviw") == 2
    assert "did you mean 'code_review'" in capsys.readouterr().err


def test_check_takes_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert orchestry("tasks", "check", "code_collaboration", "--set", "options.helpers=2") == 2
    assert "without a part for aux2" in capsys.readouterr().err
    assert orchestry("tasks", "check", "house_style", "--set", "options.nope=1") == 2
