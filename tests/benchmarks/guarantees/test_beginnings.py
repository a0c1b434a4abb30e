"""The benchmark of prompts that begin alike: both ways do the same work."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.guarantees import beginnings
from orchestry.backends.local import beginnings as shared
from tests.tasks.local_runs import roomy_model


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_both_ways_draw_and_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "LEAST", shared.LEAST)  # as it was, at the end
    case = beginnings.Case(3, taught=False, model=str(roomy_model(tmp_path)))
    found = [beginnings.measure(case, way, tmp_path / way) for way in beginnings.WAYS]
    assert found[0]["answers"] == found[1]["answers"]
    assert beginnings.apart(tmp_path) < 1e-4
