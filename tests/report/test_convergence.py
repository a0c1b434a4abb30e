"""The trend at a curve's end: against hand-computed figures, and against what was planted."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.report.convergence import FEWEST, converged, trend
from orchestry.report.runs import Salvaged
from tests.report.made import told


@given(st.lists(st.integers(0, 6), min_size=FEWEST, max_size=24))
def test_the_test_is_mann_and_kendalls_and_the_slope_sens(values: list[int]) -> None:
    change, z = trend([float(value) for value in values])
    count = len(values)
    pairs = [(j - i, values[j] - values[i]) for i, j in combinations(range(count), 2)]
    assert change.mean == pytest.approx((count - 1) * median(gap / far for far, gap in pairs))
    assert change.low <= change.mean <= change.high
    s = sum((gap > 0) - (gap < 0) for _, gap in pairs)
    ties = [values.count(value) for value in set(values)]
    spread = count * (count - 1) * (2 * count + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)
    assert z == pytest.approx((abs(s) - 1) / sqrt(spread / 18) * ((s > 0) - (s < 0)) if s else 0)


def test_the_slope_interval_covers_the_planted_slope_as_often_as_it_says() -> None:
    draws, hits = np.random.RandomState([7]), 0
    for _ in range(400):
        values = 0.02 * np.arange(20) + draws.normal(0, 0.1, 20)
        change, _ = trend([float(value) for value in values])
        hits += change.low <= 0.02 * 19 <= change.high
    assert 0.92 < hits / 400 < 0.98


@pytest.mark.parametrize(
    ("reward", "wanted"),
    [
        (lambda episode: 0.02 * episode, "still rising"),
        (lambda episode: 1 - 0.02 * episode, "still falling"),
        (lambda episode: float(episode >= 36), "still rising"),  # most pairs are equal
        (lambda episode: float(episode < 32), "still falling"),
        (lambda episode: 0.5, "flat"),
        (lambda episode: 0.5 + 0.01 * (episode % 2), "flat"),
        (lambda episode: episode * 5 % 13 / 13, "unclear"),
    ],
)
def test_the_last_third_decides(reward: object, wanted: str, forty: Path) -> None:
    assert callable(reward)
    told(forty, lambda episode, place: (reward(episode), ()))
    found = converged(Salvaged(forty))
    assert found is not None
    assert (found.verdict, found.start, found.end, found.points) == (wanted, 28, 40, 13)
    assert str(found).startswith(f"{wanted}: ")


def test_a_short_curve_is_too_short_and_none_has_no_trend(folder: Path) -> None:
    found = converged(Salvaged(folder))
    assert found is not None
    assert str(found) == "too short to say: its last third has 1 point, and the test needs 10"
    (folder / "episodes.jsonl").write_bytes(b"")
    assert converged(Salvaged(folder)) is None
