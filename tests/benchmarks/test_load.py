"""The share of the machine that others take is told apart from our own."""

from __future__ import annotations

import time

import pytest

from benchmarks import load
from benchmarks.load import Reading


def test_others_are_what_is_used_and_not_ours() -> None:
    before, after = Reading(100.0, 40.0, 10.0), Reading(110.0, 45.0, 13.0)
    assert load.others(before, after) == pytest.approx(0.2)


def test_our_own_work_is_ours() -> None:
    before = load.read()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    after = load.read()
    assert after.ours_s - before.ours_s >= 0.08
    assert after.used_s > before.used_s


def test_waiting_ends_with_the_patience() -> None:
    slept: list[float] = []
    assert 0.0 <= load.wait(2.0, slept.append) <= 1.0
    assert 1 <= len(slept) <= 3
