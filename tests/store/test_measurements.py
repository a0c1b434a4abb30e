"""Names of folders say what was measured, and are read back as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.types import SPLITS
from orchestry.store.measurements import Measurement, evaluation_folders, host_of

NUMBERS = st.none() | st.integers(0, 10_000)


@given(
    split=st.sampled_from(SPLITS),
    baseline=st.none() | st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    update=NUMBERS,
    samples=NUMBERS,
)
def test_a_name_is_read_back(
    split: str, baseline: str | None, update: int | None, samples: int | None
) -> None:
    stage = Measurement(split=split, baseline=baseline, update=update, samples=samples)
    assert Measurement.parse(stage.name) == stage


@pytest.mark.parametrize(
    "name",
    ["", "mine", "best_of_n", "test--samples", "test--samples-2--update-1", "test--update-x"],
)
def test_other_names_say_nothing(name: str) -> None:
    assert Measurement.parse(name) is None


def test_evaluations_are_found_and_know_their_run(tmp_path: Path) -> None:
    for name in ("test--update-4", "test--update-4--samples-10", "mine"):
        (tmp_path / "evaluations" / name).mkdir(parents=True)
    found = dict(evaluation_folders(tmp_path))
    assert [(path.name, stage.samples) for path, stage in found.items()] == [
        ("test--update-4", None),
        ("test--update-4--samples-10", 10),
    ]
    assert [host_of(path) for path in found] == [None, None]
    (tmp_path / "journal.jsonl").touch()
    assert [host_of(path) for path in found] == [tmp_path, tmp_path]
    assert host_of(tmp_path) is None
