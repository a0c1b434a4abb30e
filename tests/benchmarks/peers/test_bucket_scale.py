"""The benchmark of growth plays what a row says, in processes of its own."""

from __future__ import annotations

import pytest

from benchmarks.peers.bucket_scale import Setting, alone, rows

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_games_of_two_threads_are_played_in_two_processes() -> None:
    pytest.importorskip("numba")
    one, two = rows((Setting("games", 4, agents=5), Setting("games", 4, threads=2)), 0.01)
    assert list(one.values())[:4] == ["games", "4", "5", "1"]
    steps, agent_steps = (
        float(one[name].replace(",", "")) for name in ("steps/s", "agent-steps/s")
    )
    assert agent_steps == pytest.approx(5 * steps, abs=5)
    memory = [float(row["peak memory, MiB"].replace(",", "")) for row in (one, two)]
    assert memory[1] > 1.5 * memory[0] > 30


def test_ppo_learns_in_whole_batches() -> None:
    pytest.importorskip("torch")
    line = alone(Setting("ppo", 2, agents=6), 0.01)
    assert line["steps"] % 128 == 0
    assert line["cpu_s"] > 0
