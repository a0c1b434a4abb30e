"""Kept runs: what a report reads survives, and equal runs give equal archives."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import kept
from benchmarks.page import ROOT
from orchestry.core.config import validate
from orchestry.engine.run import train
from orchestry.store.run import load_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and a file beside it."""
    place = tmp_path_factory.mktemp("runs")
    config = {"task": "tldr", "episodes": 2, "provider": {"name": "fake"}}
    train(validate(config), place / "tldr-0")
    (place / "tldr-0.times.jsonl").write_text('{"cpu_s": 1.5}\n')
    return place


def test_a_kept_run_reads_as_the_run_did(folder: Path, tmp_path: Path) -> None:
    names = ["tldr-0", "tldr-0.times.jsonl"]
    first, second = tmp_path / "demo-0.tar.xz", tmp_path / "again.tar.xz"
    kept.keep(first, folder, names)
    kept.keep(second, folder, names)
    assert first.read_bytes() == second.read_bytes()

    kept.restore("demo", tmp_path / "there", kept=tmp_path)
    before, after = load_run(folder / "tldr-0"), load_run(tmp_path / "there" / "tldr-0")
    assert after.episodes == before.episodes
    assert after.config == before.config
    assert after.summary == before.summary
    assert {event.kind for event in before.events} & kept.LEFT_OUT
    assert after.events == [one for one in before.events if one.kind not in kept.LEFT_OUT]
    assert (tmp_path / "there" / names[1]).read_text() == (folder / names[1]).read_text()


def test_a_folder_is_of_one_setting_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    first = kept.place(folder, "run-0", {"learn": {"rate": 1.0}}, 3)
    assert kept.place(tmp_path, "run-0", {"learn": {"rate": 1.0}}, 3).name == first.name
    assert kept.place(folder, "run-0", {"learn": {"rate": 2.0}}, 3) != first
    revision = json.loads((folder / "tldr-0" / "manifest.json").read_bytes())["git_revision"]
    assert kept.revisions(folder, "tldr-*").endswith(f"at revision {str(revision)[:7]}.")


def test_lines_say_on_which_days_they_were_played() -> None:
    days = [{"at": f"2026-11-{day}T00:34+00:00"} for day in (28, 25, 26)]
    assert kept.span(days).startswith("Played 2026-11-25 to 2026-11-28; ")
    assert kept.span(days[:1]).startswith("Played 2026-11-28; ")


def test_a_run_that_is_there_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    kept.keep(tmp_path / "demo-0.tar.xz", folder, ["tldr-0"])
    there = tmp_path / "there" / "tldr-0"
    there.mkdir(parents=True)
    kept.restore("demo", tmp_path / "there", kept=tmp_path)
    assert not list(there.iterdir())
    kept.restore("other", tmp_path / "elsewhere", kept=tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_that_was_cut_off_is_not_kept(folder: Path, tmp_path: Path) -> None:
    cut = Path(shutil.copytree(folder / "tldr-0", tmp_path / "cut"))
    (cut / "summary.json").unlink()
    with pytest.raises(SystemExit, match="stopped before its end"):
        kept.keep(tmp_path / "demo-0.tar.xz", tmp_path, ["cut"])
    assert not (tmp_path / "demo-0.tar.xz").exists()


def test_a_name_that_is_not_there_is_said(folder: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.kept", "demo-0", str(folder), "tldr-7"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "tldr-7 does not exist: name what lies in the folder" in found.stderr
    assert not (kept.KEPT / "demo-0.tar.xz").exists()
