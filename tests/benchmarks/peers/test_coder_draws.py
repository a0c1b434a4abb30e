"""The benchmark of drawing: a whole search by the sampler, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import coder_draws
from benchmarks.peers.coder_draws import EMBEDDED, Drawn, measure, report


def test_the_report_compares_with_the_embedded_server() -> None:
    found = [
        Drawn("small", EMBEDDED, 1000, 20.0, 40.0, 0.25),
        Drawn("small", "sampler", 1000, 10.0, 20.0, 0.25),
        Drawn("large", EMBEDDED, 1000, 50.0, 90.0, 0.75),
        Drawn("large", "sampler", 900, 90.0, 90.0, 0.75),
    ]
    text = report(found, 8)
    assert "| small | sampler | 1,000 | 10 | 20 | **100** | 2.00 | 0.250 |" in text
    assert "| large | sampler | 900 | 90 | 90 | **10** | 0.50 | 0.750 |" in text
    assert "The most is 2.0 times the embedded server's (small, sampler)." in text
    assert "The embedded server is the fastest" in report([found[0], found[2], found[3]], 8)


def test_a_search_is_played_by_each_way(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = {"sampling": {"max_tokens": 8}, "episodes": 1}
    monkeypatch.setattr(coder_draws, "SEARCH", {**coder_draws.SEARCH, **sampling})
    ways = {"sampler": {"provider": {"name": "local"}, "learn": {"device": "cpu"}}}
    monkeypatch.setattr(coder_draws, "WAYS", ways)
    (found,) = measure([model], 1, tmp_path)
    assert 0 < found.tokens <= 4 * 2 * 8
    assert found.wall_s > 0.0
    assert found.cpu_s > 0.0
    assert 0.0 <= found.reward <= 1.0
