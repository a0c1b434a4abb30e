"""The benchmark of kills: its clock jumps, its comparison sees what differs, kills pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.guarantees.kills import JUMPING, KINDS, artefacts, furnish, play, section

CLOCK = """
import datetime, json, time
found = []
for _ in range(4):
    found.append([time.time(), time.time_ns() / 1e9, datetime.datetime.now().timestamp()])
    time.sleep(0.2)
print(json.dumps([found, isinstance(datetime.datetime.max, datetime.datetime)]))
"""


def clock(**more: str) -> list[list[float]]:
    """What a process reads on its three clocks, four times, 0.2 s apart."""
    told = [sys.executable, "-c", CLOCK]
    env = {**os.environ, "PYTHONPATH": str(JUMPING), **more}
    found, same = json.loads(subprocess.run(told, env=env, capture_output=True, check=True).stdout)
    assert same
    return [list(map(float, one)) for one in found]


def test_the_clock_jumps_by_hours_and_only_where_it_is_asked_to() -> None:
    jumps = [one[0] for one in clock(JUMPING_CLOCK="3")]
    assert max(jumps) - min(jumps) > 3600
    assert all(max(one) - min(one) < 1 for one in clock())


def test_what_differs_is_seen_and_a_time_is_not(tmp_path: Path) -> None:
    kind, found = KINDS["attach"], []
    answer = {"kind": "answered", "key": "k", "call": 1, "at": 1.0, "completion": {"text": "a"}}
    changes: list[dict[str, object]] = [{}, {"at": 2.0, "call": 7}, {"completion": {"text": "b"}}]
    for change in changes:
        lines = [{"kind": "opened", "at": 0.0}, {**answer, **change}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "journal.jsonl").write_text(text)
        found.append(artefacts(kind, tmp_path))
    assert found[0] == found[1] != found[2]
    (tmp_path / "journal.jsonl").write_text(text + text)
    assert artefacts(kind, tmp_path) != found[2], "an answer that was paid twice"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "attach"])  # the quickest; the benchmark plays all kinds
def test_a_kill_changes_nothing(name: str, tmp_path: Path) -> None:
    furnish(tmp_path, [name])
    found = play(name, 1, 7, 1, tmp_path)
    assert found["faults"] == {}
    assert found["equal"] == found["kills"] == 1
    assert f"| {name} | 1 | **1** |" in section([found])
