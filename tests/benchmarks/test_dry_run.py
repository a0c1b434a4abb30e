"""The dry run's benchmark on a few configurations of its own population."""

from __future__ import annotations

import pytest

from benchmarks.dry_run import MOST_CALLS, Outcome, draw, play, result, section
from orchestry.estimate import Dollars, estimate


def test_configurations_repeat_and_vary() -> None:
    configs = [draw(seed) for seed in range(16)]
    assert configs[7] == draw(7)
    assert {config.task for config in configs} == {"words", "relay", "duet", "until"}
    assert {config.search.strategy for config in configs} == {"beam", "best_of_n", "fixed"}
    assert {config.provider.fake.fault_rate > 0 for config in configs} == {True, False}
    assert {config.provider.fake.output_tokens is None for config in configs} == {True, False}
    assert any(config.budget.usd for config in configs)
    assert all(estimate(config).calls <= MOST_CALLS for config in configs[:3])


def test_the_result_counts_both_sides_and_the_maximum() -> None:
    foretold = Dollars(p5=1.0, expected=2.0, p95=4.0, max=8.0)
    outcomes = [
        Outcome(seed, draw(0), foretold, usd, "done") for seed, usd in enumerate((0.5, 2.0, 5.0, 9))
    ]
    found = result(outcomes, 1.0)
    assert (found["within"], found["below"], found["above"], found["above_max"]) == (1, 1, 2, 1)
    assert found["outside_seeds"] == [0, 2, 3]
    assert found["median_p95_over_p5"] == 4.0
    assert "**1 of 4**" in section(found)


def test_a_run_without_a_maximum_is_counted_apart() -> None:
    bounded, free = (Dollars(p5=1.0, expected=2.0, p95=4.0, max=top) for top in (8.0, None))
    outcomes = [Outcome(0, draw(0), bounded, 4.0, "done"), Outcome(1, draw(1), free, 9.0, "done")]
    found = result(outcomes, 1.0)
    assert (found["above_max"], found["without_max"]) == (0, 1)
    assert found["least_max_over_real"] == 2.0


@pytest.mark.slow
def test_most_of_a_few_runs_are_foretold_and_none_passes_the_maximum() -> None:
    found = result([play(seed) for seed in range(5000, 5008)], 1.0)
    assert found["within"] >= 6
    assert found["above_max"] == 0
