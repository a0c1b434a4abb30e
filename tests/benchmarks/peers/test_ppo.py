"""The benchmark of PPO beside stable-baselines3: our contestant does the work it is given."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from benchmarks.peers import ppo_work, with_ppo
from benchmarks.peers.ppo import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")


def test_ours_takes_the_steps_and_plays_the_games(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = replace(SMALL, games=4, horizon=16, passes=1, steps=100, scenario="easy")
    monkeypatch.setattr(sys, "argv", ["with_ppo", ppo_work.plain(work)])
    monkeypatch.setattr(ppo_work, "GAMES", 10)
    ppo_work.compete(with_ppo.learn)
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 128
    assert len(found["returns"]) == 10
    assert found["cpu_s"] > 0
