"""What is timed is played: so many steps as are counted."""

from __future__ import annotations

import pytest

from benchmarks.peers import bucket_speed, rate


def test_games_are_played_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    assert bucket_speed.compiled("default", 3)() == 3 * bucket_speed._PLAYED
    assert bucket_speed.compiled("default", 3, agents=7)() == 3 * bucket_speed._PLAYED
    assert bucket_speed.in_python("default")() >= 13
    monkeypatch.setattr(rate, "SECONDS", 0.01)
    middle, least, most = rate.rate(lambda: 5)
    assert 0 < least <= middle <= most
