"""A run continued from another folder, at another address, or under its short name `last`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestry.store.journal import Answered
from orchestry.store.run import Run
from tests.cli.support import FAKE, TASKS, CommandLine, chat, served

HERE = tuple(word for word in FAKE if word not in ("--task-path", TASKS))
"""A run of the task `words` in ./tasks."""


@pytest.fixture
def project(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task and a run of it; the test stands in another one."""
    monkeypatch.chdir(Path(shutil.copytree(TASKS, tmp_path / "project" / "tasks")).parent)
    assert cli("run", *HERE, "--run-dir", "runs/one").code == 0
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    return tmp_path / "project"


def test_a_runs_own_tasks_are_found_from_any_folder(cli: CommandLine, project: Path) -> None:
    run = project / "runs" / "one"
    assert cli("resume", run, "--episodes", 4).code == 0
    assert cli("evaluate", run).code == 0
    assert cli("baselines", "run", "fixed", "--of", run, "--samples", 2).code == 0


def test_tasks_that_moved_are_named(cli: CommandLine, project: Path, tmp_path: Path) -> None:
    moved, run = tmp_path / "moved", project / "runs" / "one"
    (project / "tasks").rename(moved)
    commands = (
        ("evaluate", run),
        ("baselines", "run", "fixed", "--of", run, "--samples", 2),
        ("resume", run),  # which keeps the new place
    )
    for words in commands:
        result = cli(*words)
        assert f"{project / 'tasks'} is gone: --task-path says" in " ".join(result.err.split())
        assert "unknown task 'words'" in result.last
        assert cli(*words, "--task-path", moved).code == 0


def test_a_project_that_moved_goes_on_in_its_new_place(
    cli: CommandLine, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.rename(tmp_path / "new"))
    assert cli("resume", "runs/one", "--episodes", 4).code == 0


@pytest.mark.slow
def test_last_is_the_run_that_was_written_last(
    cli: CommandLine, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("runs/judge-check").mkdir(parents=True)
    Path("runs/judge-check/journal.jsonl").touch()
    assert "there is no run in ./runs yet" in cli("resume", "last").err
    monkeypatch.chdir(project)
    for number, name in enumerate(("two", "three")):
        shutil.copytree("runs/one", f"runs/{name}")
        os.utime(f"runs/{name}/journal.jsonl", (number, number))
    os.utime("runs/two/journal.jsonl")
    found = json.loads(cli("resume", "last", "--json").out)["run_dir"]
    assert found == "runs/two"
    for words in (
        ("evaluate", "last"),
        ("baselines", "run", "fixed", "--of", "last", "--samples", "2"),
        ("report", "last"),
        ("rate", "last", "--show", "--json"),
        ("behaviors", "list", "last"),
        ("behaviors", "diff", "last"),
        ("export", "last"),
    ):
        result = cli(*words)
        assert "runs/two" in f"{result.out}{result.err}", words
    Path("last").mkdir()
    cli("resume", "last").failed(2, "last holds no run")


def test_a_resume_asks_at_todays_address_and_pays_no_answer_again(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[str]] = {"one": [], "two": []}

    def answer(server: str) -> Any:
        def reply(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
            asked[server].append(json.dumps(body, sort_keys=True))
            return 200, chat(f"word {len(asked[server])} of {server}")

        return reply

    free = ("--set", "prices.m.input=0", "--set", "prices.m.output=0")
    off = ("--set", "judge.enabled=false", "--set", "behaviors.enabled=false")
    words = (*FAKE, "--provider", "openai", "--model", "m", *free, *off, "--run-dir", "run")
    with served(answer("one")) as one, served(answer("two")) as two:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{one}/v1")
        assert cli("run", *words, "--episodes", 2).code == 0
        before = [e for e in Run(Path("run")).events if isinstance(e, Answered)]
        Path("run/episodes.jsonl").unlink()  # so that a resume plays from the journal's answers
        monkeypatch.setenv("OPENAI_BASE_URL", f"{two}/v1/")
        result = cli("resume", "run", "--episodes", 3)
    assert result.code == 0, result
    said = " ".join(result.err.split())
    assert f"asking at the address in OPENAI_BASE_URL; so far the run asked at {one}/v1" in said
    after = [e for e in Run(Path("run")).events if isinstance(e, Answered)]
    assert after[: len(before)] == before
    assert len(asked["two"]) == len(after) - len(before) > 0
    assert not set(asked["two"]) & set(asked["one"])
    cli("resume", "run", "--episodes", 3)
    assert Run(Path("run")).config["provider"]["base_url"] == f"{two}/v1"
