"""A run without its summary says what its journal and episodes tell."""

from __future__ import annotations

from pathlib import Path

from orchestry.report.measures import measured
from orchestry.report.salvage import Salvaged
from orchestry.store.run import Run

UNTOLD = {"prompt_diff", "seconds", "stopped", "solved", "accepted", "run_dir"}


def test_the_folded_summary_is_the_written_one(folder: Path, searched: Run) -> None:
    (folder / "summary.json").unlink()
    found = Salvaged(folder).summary.model_dump(exclude=UNTOLD)
    assert found == searched.summary.model_dump(exclude=UNTOLD)


def test_a_run_without_its_summary_is_measured_all_the_same(folder: Path, searched: Run) -> None:
    (folder / "summary.json").write_text("{")
    found, whole = measured(Salvaged(folder)), measured(searched)
    assert found is not None
    assert whole is not None
    assert (found.reward, found.best, found.calls) == (whole.reward, whole.best, whole.calls)


def test_a_readable_summary_is_taken_as_it_is(folder: Path, searched: Run) -> None:
    assert Salvaged(folder).summary == searched.summary
