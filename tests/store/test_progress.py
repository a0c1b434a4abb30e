"""progress.jsonl: what was written is read, a cut-off end is left out, damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.errors import StoreError
from orchestry.store.progress import PROGRESS, progress, readable

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**12)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"steps": st.integers(1), "at": NUMBERS}, optional={"learn/kl": NUMBERS, "a\u2028": NUMBERS}
    ),
    max_size=5,
)


@given(ROWS, st.integers(1, 200))
def test_all_but_a_cut_off_end_is_read(rows: list[dict[str, float]], lost: int) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    with TemporaryDirectory() as name:
        path = Path(name) / PROGRESS
        path.write_text("".join(lines))
        assert progress(Path(name)) == rows
        if rows:
            cut = min(lost, len(lines[-1]) - 1)
            path.write_bytes(path.read_bytes()[: -1 - cut])
            assert progress(Path(name)) == rows[:-1]


def test_a_run_without_the_file_has_no_rows(tmp_path: Path) -> None:
    assert progress(tmp_path) == []


@pytest.mark.parametrize(
    "spoilt", ["{", "[1]", '{"steps": 2}', '{"steps": 2, "at": NaN}', '{"steps": "2", "at": 1}']
)
def test_a_damaged_line_is_named(spoilt: str, tmp_path: Path) -> None:
    whole = '{"steps": 1, "at": 2.0}\n'
    (tmp_path / PROGRESS).write_text(f"{whole}{spoilt}\n{whole}")
    with pytest.raises(StoreError, match=r"progress\.jsonl line 2 is damaged: delete it"):
        progress(tmp_path)
    rows, damaged = readable(tmp_path)
    assert rows == [{"steps": 1, "at": 2.0}] * 2
    assert "line 2" in damaged
