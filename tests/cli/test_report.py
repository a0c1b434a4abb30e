"""`orchestry report`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import FAKE, CommandLine

pytest.importorskip("matplotlib")


@pytest.fixture
def run(cli: CommandLine, tmp_path: Path) -> Path:
    """Three episodes of `words`."""
    assert cli("run", *FAKE, "--run-dir", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_one_run_is_reported_in_itself(cli: CommandLine, run: Path) -> None:
    done = cli("report", "run")
    assert done.code == 0, done
    assert (run / "report" / "RESULTS.md").is_file()
    assert "Task words, backend api (beam)" in done.out
    assert "3 episodes" in done.out
    assert "run/report/RESULTS.md" in done.out.splitlines()
    assert "Written by `orchestry report run`." in (run / "report" / "RESULTS.md").read_text()


@pytest.mark.slow
def test_a_second_report_replaces_the_first(cli: CommandLine, run: Path) -> None:
    first, second = cli("report", "run"), cli("report", "run")
    assert (first.code, first.out) == (second.code, second.out)


def test_json_is_one_object_with_what_was_written(cli: CommandLine, run: Path) -> None:
    done = cli("report", "run", "--out", "there", "--json")
    found = json.loads(done.out)
    assert found["folder"] == "there"
    assert all(Path(path).is_file() for path in found["files"])
    assert found["runs"] == [
        {"label": "run", "run_dir": "run", "evaluations": [], "baselines": [], "missing": []}
    ]
    assert found["summary"][0]["says"][0].startswith("Task words")


@pytest.mark.slow
def test_several_runs_need_a_folder(cli: CommandLine, run: Path) -> None:
    assert cli("run", *FAKE, "--seed", "1", "--run-dir", "other").code == 0
    cli("report", "run", "other").failed(2, "a report of 2 runs needs a folder", "--out DIR")
    done = cli("report", "run", "other", "--out", "both")
    assert done.code == 0
    assert "words, all seeds" in done.out
    assert Path("both/RESULTS.md").is_file()


@pytest.mark.slow
def test_a_run_that_is_cut_off_is_reported_as_far_as_it_came(cli: CommandLine, run: Path) -> None:
    (run / "summary.json").unlink()
    path = run / "journal.jsonl"
    path.write_bytes(path.read_bytes().rpartition(b'{"kind":"committed"')[0])
    done = cli("report", "run")
    assert done.code == 0
    assert "Missing: 2 of 3 episodes are finished." in done.out


@pytest.mark.slow
def test_criteria_stand_with_their_figures(cli: CommandLine, run: Path) -> None:
    done = cli("report", "run", "--criteria")
    assert done.code == 0
    assert "not met:    500 episodes without a crash: 3 episodes; " in done.out
    assert "met:        under its budget: 0.0000 USD of 5.0000 USD" in done.out
    text = (run / "report" / "RESULTS.md").read_text()
    assert "Written by `orchestry report run --criteria`." in text
    assert "| minimum | under its budget | **met** | 0.0000 USD of 5.0000 USD |" in text
    assert "criteria" not in json.loads(cli("report", "run", "--json").out)
    found = json.loads(cli("report", "run", "--criteria", "--json").out)["criteria"]
    assert [one["level"] for one in found] == ["minimum"] * 4 + ["target"] * 4 + ["stretch"] * 2
    assert {one["verdict"] for one in found} <= {"met", "not met", "can't tell"}


def test_what_is_no_run_is_refused(cli: CommandLine, run: Path) -> None:
    cli("report", "nowhere").failed(2, "nowhere does not exist")
    cli("report", "run", "--out", "run/config.yaml").failed(2, "is not a directory")
    assert cli("report").code == 2
