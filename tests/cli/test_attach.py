"""`orchestry attach`: what it takes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestry.core.errors import LeftOut
from orchestry.core.types import SPLITS, Problem
from orchestry.task.registry import load_task
from tests.cli.support import CommandLine

PROBLEMS = '{"id": "tea", "prompt": "What is tea?"}'
MADE = ("app", "--problems", "problems.jsonl")


@pytest.fixture
def problems() -> None:
    """In the folder where `cli` stands."""
    Path("problems.jsonl").write_text(PROBLEMS, encoding="utf-8")
    Path("app.py").touch()


def test_a_task_is_named_after_the_commands_file(cli: CommandLine, problems: None) -> None:
    Path("my-app.py").touch()
    result = cli("attach", *MADE[1:], "--", "python", "my-app.py", "--verbose", "other.py")
    assert result.code == 0, result
    text = Path("tasks/my_app/task.py").read_text(encoding="utf-8")
    assert f"('python', '{Path.cwd() / 'my-app.py'}', '--verbose', 'other.py')" in text


@pytest.mark.parametrize(
    ("agents", "found"),
    [
        ("a-b,c,A_b", "a-b and A_b would both have their address in ORCHESTRY_URL_A_B: rename one"),
        ("writer,v1", "v1 names the whole team"),
        ("writer,writer", "name each agent once"),
        ("writer=a,writer=b", "name each agent once"),
        ("=gpt-4o", "name each agent once"),
        ("writer=,critic", "gives writer no model"),
    ],
)
def test_agents_that_a_program_could_not_reach(
    agents: str, found: str, cli: CommandLine, problems: None
) -> None:
    cli("attach", *MADE, "--agents", agents, "--", "python", "app.py").failed(2, found)
    assert not Path("tasks").exists()


@pytest.mark.parametrize(
    ("agents", "models", "shared"),
    [
        ("writer,critic", {}, False),
        ("a = gpt-4o-mini, b=org/gpt=4", {"a": "gpt-4o-mini", "b": "org/gpt=4"}, False),
        ("a=gpt-4o,b=gpt-4o,c", {"a": "gpt-4o", "b": "gpt-4o"}, True),
    ],
)
def test_a_program_keeps_the_names_of_its_models(
    agents: str, models: dict[str, str], shared: bool, cli: CommandLine, problems: None
) -> None:
    result = cli("attach", *MADE, "--agents", agents, "--", "python", "-c", "pass")
    assert result.code == 0, result
    assert ("a and b have one model" in result.out) == shared
    task: Any = load_task("app", task_path=[Path("tasks")])
    assert task.models == models
    assert len(task.asked_agents()) == len(agents.split(","))


@pytest.mark.parametrize("text", [None, "{", '{"id": "tea"}'])
def test_problems_that_cannot_be_read(text: str | None, cli: CommandLine) -> None:
    if text is not None:
        Path("problems.jsonl").write_text(text, encoding="utf-8")
    Path("app.py").touch()
    cli("attach", *MADE, "--", "python", "app.py").failed(2, "problems.jsonl")


HINT = ". The command comes after `--`, as in: orchestry attach my_app"


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ((*MADE, "python", "app.py", "--x"), f"There is no `--`{HINT}"),
        ((*MADE, "python", "app.py"), f"There is no `--`{HINT}"),
        (("--", "python", "app.py"), "Missing option '--problems'"),
        ((*MADE[1:], "--", "./prog"), f"NAME is missing{HINT}"),
        ((*MADE, "--"), "Missing argument '-- COMMAND'"),
        ((*MADE, "--x", "--", "python", "app.py"), "No such option: --x"),
    ],
)
def test_a_command_comes_after_two_dashes(
    args: tuple[str, ...], found: str, cli: CommandLine
) -> None:
    """The hint about it is only given where it helps."""
    result = cli("attach", *args)
    assert result.code == 2
    assert found in result.err
    assert (HINT in result.err) == (HINT in found)


def test_the_name_is_shown_as_optional(cli: CommandLine) -> None:
    assert "attach [OPTIONS] [NAME] {-- COMMAND}..." in cli("attach", "--help").out


ROWS = [
    {"question": f"What is {n}?", "answer": n, "hint": None if n % 2 else "small", "split": split}
    for n, split in enumerate(["train", "validation", "test"])
]


def given(*lines: object) -> None:
    """The file of problems, marked as Notepad saves it."""
    text = "\r\n".join(json.dumps(line) for line in lines)
    Path("problems.jsonl").write_text(f"\ufeff{text}", encoding="utf-8")


def loaded() -> list[Problem]:
    task = load_task("app", task_path=[Path("tasks")])
    return [one for split in SPLITS for one in task.problems(split)]


def test_columns_of_a_file_are_problems(cli: CommandLine, problems: None) -> None:
    given(*ROWS)
    how = ("--columns", "prompt=question,id=answer,size=hint", "--reward-max", 10)
    cli("attach", *MADE, *how, "--", "python", "app.py").failed(2, "'hint'")
    how = ("--columns", "prompt=question,gold=answer", "--reward-max", 10)
    assert cli("attach", *MADE, *how, "--", "python", "app.py").code == 0
    found = [(one.prompt, one.split, one.data) for one in loaded()]
    assert found == [
        ("What is 0?", "train", {"gold": 0, "hint": "small"}),
        ("What is 1?", "dev", {"gold": 1}),
        ("What is 2?", "test", {"gold": 2, "hint": "small"}),
    ]
    assert "reward_max = 10.0  #" in Path("tasks/app/task.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("columns", "line", "found"),
    [
        ("prompt=question,prompt=answer", {}, "say once what each is"),
        ("prompt=", {}, "say once what each is"),
        ("gold=answer", {}, "has no column 'prompt', only question, answer"),
        ("prompt=question,id=answer", {"answer": 0}, "line 4: a second row of the id '0'"),
        ("prompt=question", {"split": "all"}, "line 4 has the split 'all': write one of train"),
        ("prompt=question", {"split": []}, "line 4 has the split '[]'"),
    ],
)
def test_columns_that_a_file_lacks(
    columns: str, line: dict[str, object], found: str, cli: CommandLine, problems: None
) -> None:
    given(*ROWS, {"question": "?", "answer": 9, **line})
    cli("attach", *MADE, "--columns", columns, "--", "python", "app.py").failed(2, found)
    assert not Path("tasks").exists()


@pytest.mark.parametrize("columns", [(), ("--columns", "prompt=question,gold=answer")])
def test_problems_may_be_rows_of_a_csv(
    columns: tuple[str, ...], cli: CommandLine, problems: None
) -> None:
    cells = '"What, is 0?",0,,train\nIs 1?,1,small,validation\nIs 2?,2,,test\n'
    Path("rows.csv").write_text(f"question,answer,hint,split\n{cells}")
    made = ("app", "--problems", "rows.csv")
    assert cli("attach", *made, *columns, "--", "python", "app.py").code == 0
    gold = "gold" if columns else "answer"
    assert [(one.prompt, one.split, one.data) for one in loaded()] == [
        ("What, is 0?", "train", {gold: "0"}),
        ("Is 1?", "dev", {gold: "1", "hint": "small"}),
        ("Is 2?", "test", {gold: "2"}),
    ]


@pytest.mark.parametrize("most", ["0", "-1", "nan", "inf"])
def test_a_highest_reward_is_a_number_above_none(
    most: str, cli: CommandLine, problems: None
) -> None:
    result = cli("attach", *MADE, f"--reward-max={most}", "--", "python", "app.py")
    result.failed(2, "give a number above 0")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (("nosuch", "app.py"), "nosuch can't be started (it is not on PATH)"),
        (("./nosuch",), "./nosuch can't be started (there is no such file)"),
        (("./app.py",), "it is no program: `chmod +x"),
        (("python", "-u", "nosuch.py", "--out", "x.py"), "file nosuch.py does not exist"),
        (("python", "-m", "no_such_mod"), "module no_such_mod is not found by python"),
        (("python", "-u", "-m", "no_such_mod.main"), "module no_such_mod.main is not found"),
        (("env", "A=1", "python", "nosuch.py"), "file nosuch.py does not exist"),
        (("env", "A=1", "python", "-m", "no_such_mod"), "module no_such_mod is not found"),
        (("nice", "-n", "5", "env", "-i", "nosuch"), "nosuch can't be started (it is not on PATH)"),
        (("timeout", "60s", "nohup", "python", "nosuch.py"), "file nosuch.py does not exist"),
    ],
)
def test_a_command_that_does_not_exist(
    command: tuple[str, ...], found: str, cli: CommandLine, problems: None
) -> None:
    cli("attach", *MADE, "--", *command).failed(2, found)
    assert not Path("tasks").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-m", "json.tool", "nosuch.py"),
        ("python", "-c", "print(1)", "nosuch.py"),
        ("python", "app.py", "-m", "no_such_mod"),
        ("env", "PYTHONPATH=lib", "python", "-m", "mine"),
        ("env", "-u", "A", "python", "app.py"),
        ("env", "-C", "lib", "python", "nosuch.py"),
        ("env", "PATH=lib", "nosuch"),
        ("env",),
    ],
)
def test_a_command_that_may_exist(
    command: tuple[str, ...], cli: CommandLine, problems: None
) -> None:
    Path("lib").mkdir()
    Path("lib/mine.py").write_text("raise SystemExit('imported')")
    assert cli("attach", *MADE, "--", *command).code == 0


def test_a_run_without_its_command_makes_no_folder(cli: CommandLine, problems: None) -> None:
    Path("prog").write_text("#!/bin/sh\n")
    Path("prog").chmod(0o755)
    assert cli("attach", *MADE, "--", "./prog").code == 0
    Path("prog").unlink()
    run = ("run", "--task", "app", "--provider", "fake", "--run-dir", "run")
    cli(*run).failed(2, "prog can't be started (there is no such file)")
    assert not Path("run").exists()


def test_force_replaces_what_attach_wrote_and_nothing_else(
    cli: CommandLine, problems: None
) -> None:
    again = ("attach", *MADE, "--agents", "editor", "--", "python", "app.py")
    assert cli("attach", *MADE, "--", "python", "app.py").code == 0
    Path("tasks/app/notes.txt").write_text("mine")
    cli(*again).failed(2, "written by an earlier attach: choose another name, or replace it with")
    forced = (*again[:4], "--force", *again[4:])
    assert cli(*forced).code == 0
    assert "editor" in Path("tasks/app/task.py").read_text(encoding="utf-8")
    assert sorted(path.name for path in Path("tasks/app").iterdir()) == [
        "notes.txt",
        "problems.jsonl",
        "task.py",
        "task.py.1",
    ]
    task = Path("tasks/app/task.py")
    task.write_text(task.read_text(encoding="utf-8") + "# by hand", encoding="utf-8")
    for _ in range(2):
        said = cli(*forced)
        assert said.code == 0
        assert "task.py.1" not in said.out
    assert Path("tasks/app/task.py.2").read_text(encoding="utf-8").endswith("# by hand")
    assert not Path("tasks/app/task.py.3").exists()
    Path("tasks/app/task.py").write_text("# by hand")
    cli(*forced).failed(2, "tasks/app exists: choose another name")
    assert Path("tasks/app/task.py").read_text() == "# by hand"


def test_half_a_surrogate_pair_costs_its_problem(cli: CommandLine, problems: None) -> None:
    given(*({"id": f"p{n}", "prompt": "\ud83d" if n == 1 else "x"} for n in range(4)))
    with pytest.warns(LeftOut, match=r"problems\.jsonl, line 2 is left out"):
        assert cli("attach", *MADE, "--", "python", "app.py").code == 0
    assert sorted(one.id for one in loaded()) == ["p0", "p2", "p3"]


def test_what_is_left_out_is_said_in_a_line(cli: CommandLine, problems: None) -> None:
    given(*({"id": f"p{n}", "prompt": "\ud83d" if n == 1 else "x"} for n in range(4)))
    command = [sys.executable, "-m", "orchestry", "attach", *MADE, "--", "python", "app.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == (
        "· problems.jsonl, line 2 is left out, since it holds half a surrogate pair, \\ud83d: "
        "correct that character\n"
    )
