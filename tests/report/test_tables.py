"""What failed is counted from the journal, with what it is counted of."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import orchestry
from orchestry.report.runs import Salvaged
from orchestry.report.tables import fault_counts
from orchestry.store.journal import Journal, Lost, Opened, Stopped
from orchestry.store.run import Run
from tests.report.made import config


def test_a_clean_run_says_none(searched: Run) -> None:
    found = fault_counts(searched)
    answers = searched.summary.calls
    assert found["empty answers"] == f"0 % (0 of {answers})"
    assert found["attempts that failed and were tried again or given up"] == "0"
    assert found["processes after the first (resumes)"] == "0"
    assert found["how its processes ended"] == "done 1"
    assert found["judgements that were malformed"] == "none"


def test_failed_attempts_are_counted_with_their_reasons(tmp_path: Path) -> None:
    fake = {"name": "fake", "fake": {"fault_rate": 0.3, "faults": ["429"]}}
    plain = config(provider=fake, retry={"base_s": 0.0, "max_s": 0.0}, episodes=1)
    run = orchestry.train(plain, tmp_path / "run")
    said = fault_counts(run)["attempts that failed and were tried again or given up"]
    count = sum(event.kind == "released" for event in run.events)
    assert count
    assert said.startswith(f"{count} (")
    assert "429" in said


def test_empty_answers_and_zero_advantages_are_counted(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"agent": "*", "text": " "}) + "\n")
    fake = {"name": "fake", "fake": {"script": str(script)}}
    run = orchestry.train(config(provider=fake, episodes=1), tmp_path / "run")
    found = fault_counts(run)
    groups = sum(len(group.children) > 1 for group in run.episodes[0].groups)
    assert found["empty answers"].startswith("100 % ")
    name = "groups of several samples whose advantages are all zero"
    assert found[name] == (f"100 % ({groups} of {groups})")


def test_a_resume_and_a_lost_call_are_counted(folder: Path) -> None:
    journal = Journal(folder / "journal.jsonl")
    journal.append(Opened(at=time.time(), provider="fake", model="m"))
    journal.append(Lost(call=7, why="no answer"))
    journal.append(Stopped(reason="interrupted", at=time.time()))
    journal.append(Opened(at=time.time(), provider="fake", model="m"))
    journal.close()
    found = fault_counts(Salvaged(folder))
    assert found["processes after the first (resumes)"] == "2"
    assert found["calls lost, charged at their worst case"] == "1 (1: no answer)"
    assert found["how its processes ended"] == "done 1, interrupted 1, running or cut off 1"


@pytest.mark.parametrize("stop", ["length", "stop_sequence"])
def test_answers_that_did_not_end_are_told_apart(folder: Path, stop: str) -> None:
    run = Salvaged(folder)
    first = next(event for event in run.events if event.kind == "answered")
    cut = first.completion.model_copy(update={"stop": stop})
    journal = Journal(folder / "journal.jsonl")
    journal.append(first.model_copy(update={"completion": cut}))
    journal.close()
    before, after = fault_counts(run), fault_counts(Salvaged(folder))
    row = (
        "answers cut off at the length limit"
        if stop == "length"
        else ("other stop reasons than end and length")
    )
    assert before[row] != after[row]
