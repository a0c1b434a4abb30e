"""`orchestry attach`: what it takes, and how it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestry.task.registry import load_task
from tests.cli.support import CommandLine

PROBLEMS = '{"id": "tea", "prompt": "What is tea?"}'
MADE = ("app", "--problems", "problems.jsonl")


@pytest.fixture
def problems() -> None:
    """In the folder where `cli` stands."""
    Path("problems.jsonl").write_text(PROBLEMS, encoding="utf-8")


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
        ("writer = gpt-4o-mini, critic=org/gpt=4", {"writer": "gpt-4o-mini", "critic": "org/gpt=4"},
         False),
        ("a=gpt-4o,b=gpt-4o,c", {"a": "gpt-4o", "b": "gpt-4o"}, True),
    ],
)  # fmt: skip
def test_a_program_keeps_the_names_of_its_models(
    agents: str, models: dict[str, str], shared: bool, cli: CommandLine, problems: None
) -> None:
    result = cli("attach", *MADE, "--agents", agents, "--", "python", "app.py")
    assert result.code == 0, result
    assert ("a and b have one model" in result.out) == shared
    task: Any = load_task("app", task_path=[Path("tasks")])
    assert task.models == models
    assert len(task.asked_agents()) == len(agents.split(","))


@pytest.mark.parametrize("text", [None, "{", '{"id": "tea"}'])
def test_problems_that_cannot_be_read(text: str | None, cli: CommandLine) -> None:
    if text is not None:
        Path("problems.jsonl").write_text(text, encoding="utf-8")
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
