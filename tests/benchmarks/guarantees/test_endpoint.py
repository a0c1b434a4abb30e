"""The benchmark of the programs' address counts real calls, with faults and under a cap."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from benchmarks.guarantees import endpoint
from benchmarks.page import SECTIONS


@pytest.mark.slow
def test_calls_are_counted_and_the_cap_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "AT_ONCE", 3)
    monkeypatch.setattr(endpoint, "CALLS", 4)
    monkeypatch.setattr(endpoint, "EPISODES", 4)
    assert endpoint.overhead_ms(tmp_path / "overhead") > 0
    text = endpoint.report(1, tmp_path)
    assert "| with faults | done | 48 | 12 of 12 |" in text
    assert "| with faults and a cap | budget |" in text
    assert "endpoint" in SECTIONS
