"""`orchestry export`, as a user calls it; tests/engine/test_export.py tests what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.letters import TASK, settings, write_task
from tests.cli.support import FAKE, CommandLine


def test_a_run_of_prompts_is_exported(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "a-run").code == 0
    told = cli("export", "a-run")
    assert told.code == 0
    assert told.out == (
        "prompts of writer, reviewer, refactorer after update 0, with 0 learned behaviours\n"
        "  a-run/export/update-0: README.md, team.yaml, team.py\n"
    )
    found = json.loads(cli("export", "a-run", "--out", "out", "--json").out)
    assert (found["folder"], found["update"], found["accepted"]) == ("out", 0, [])
    assert found["agents"] == ["writer", "reviewer", "refactorer"]
    again = cli("run", *FAKE, "--config", "out/team.yaml", "--run-dir", "again")
    assert again.code == 0
    for args in (("--merge",), ("--agent", "writer")):
        cli("export", "a-run", *args).failed(
            2, "a-run is a run of backend api", "leave out --merge and --agent"
        )
    cli("export", "a-run").failed(2, "a-run/export/update-0 is not empty")
    cli("export", "a-run", "--update", 1).failed(2, "a-run has no update 1")


def test_answers_are_exported_as_chats(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "a-run").code == 0
    told = cli("export", "a-run", "--as", "openai", "--top", 1)
    assert told.code == 0
    assert told.out.startswith("chats in a-run/export/openai; README.md says where they come from")
    assert "\n  a-run/export/openai/writer.jsonl: " in told.out
    found = json.loads(cli("export", "a-run", "--as", "hf", "--out", "out", "--json").out)
    assert (found["folder"], found["form"]) == ("out", "hf")
    assert all(Path("out", f"{role}.jsonl").exists() for role in found["agents"])
    cli("export", "a-run", "--as", "openai").failed(2, "a-run/export/openai is not empty")
    for args, text in (
        (("--as", "hf", "--merge"), "--as writes what the agents said: leave out --merge"),
        (("--min-reward", "0.5"), "--min-reward chooses answers: add --as openai or --as hf"),
        (("--as", "csv"), "'csv' is not one of 'openai', 'hf'"),
    ):
        wrong = cli("export", "a-run", *args)
        assert (wrong.code, wrong.out) == (2, "")
        assert text in wrong.err


def test_what_is_no_run_is_named(cli: CommandLine) -> None:
    cli("export", "nowhere").failed(2, "nowhere does not exist: give the directory")
    cli("export", ".").failed(2, ". holds no run: give the directory")
    assert cli("export").code == 2


def test_a_local_run_is_exported(cli: CommandLine, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_folder

    model, threads = str(tiny_folder(tmp_path / "tiny")), torch.get_num_threads()
    sets = [
        arg
        for one in settings(model, write_task(tmp_path / "tasks", TASK), "episodes=4")
        for arg in ("--set", one)
    ]
    assert cli("run", *sets, "--run-dir", "run").code == 0
    torch.set_num_threads(threads)
    told = cli("export", "run")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("LoRA adapters of update 1 (reward 0.")
    assert "\n  run/export/update-1/left  (" in told.out
    cli("export", "run").failed(2, "run/export/update-1 is not empty: choose another folder")
    merged = cli("export", "run", "--merge", "--agent", "left", "--out", "out/here", "--json")
    assert merged.code == 0
    assert merged.err == f"· merging left into the base {model}\n"
    found = json.loads(merged.out)
    assert 0 <= found.pop("mean_reward") <= 1
    assert found == {
        "run_dir": "run",
        "folder": "out/here",
        "merged": True,
        "update": 1,
        "checkpoint": "checkpoints/000004",
        "exports": [{"folder": "out/here/left", "agents": ["left"], "base": model}],
    }
    assert (tmp_path / "out" / "here" / "left" / "model.safetensors").is_file()
    cli("export", "run", "--agent", "up").failed(2, "unknown agent of run 'up'", "left, right")
