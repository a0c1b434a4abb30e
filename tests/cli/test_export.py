"""`orchestry export`, as a user calls it; tests/engine/test_export.py tests what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.letters import TASK, settings, write_task
from tests.cli.support import FAKE, CommandLine


def test_a_run_of_prompts_says_where_they_are(cli: CommandLine) -> None:
    assert cli("run", *FAKE, "--run-dir", "a-run").code == 0
    before = sorted(Path().rglob("*"))
    for args in ((), ("--merge",), ("--update", 1)):
        cli("export", "a-run", *args).failed(
            2, "a-run is a run of backend api", "no weights: `orchestry behaviors list a-run`"
        )
    assert sorted(Path().rglob("*")) == before


def test_what_is_no_run_is_named(cli: CommandLine) -> None:
    cli("export", "nowhere").failed(2, "nowhere does not exist: give the directory")
    cli("export", ".").failed(2, ". holds no run: give the directory")
    assert cli("export").code == 2


def test_a_local_run_is_exported(cli: CommandLine, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("peft")
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
    assert told.out.startswith("LoRA adapters of update 1 (mean reward 0.")
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
