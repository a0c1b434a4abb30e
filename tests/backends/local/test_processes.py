"""Two real processes of a launch: what they put together, and what one hears of the other's end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

from tests.backends.local.launched import finish, launching


@pytest.mark.slow
def test_two_processes_work_fail_and_part_together(tmp_path: Path) -> None:
    with launching("tests.backends.local.launched", "meet", str(tmp_path)) as process:
        code, said = finish(process)
    assert code != 0, said  # the second process ended by itself
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ranks"] == [0, 1]
    assert found["sums"] == [[1.0, 1.0], [2.0, 2.0, 2.0]]
    assert found["error 0"] == ["ZeroDivisionError", "no such luck", False]
    name, text, traced = found["error 1"]
    assert (name, traced) == ("LearnError", True)
    assert text == "process 1: unforeseen ZeroDivisionError: no such luck"
    notes = ["about to fail", "process 1: fine", "fine", "process 1: about to fail"]
    assert found["said"] == notes
    assert found["alone"].startswith("another process of this launch has ended (")
    assert ".cc" not in found["alone"]
