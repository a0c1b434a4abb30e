"""The dry run's benchmark on a few configurations of its own population."""

from __future__ import annotations

import pytest

from benchmarks.guarantees.dry_run import (
    MOST_CALLS,
    Outcome,
    draw,
    draw_judged,
    judged_result,
    judged_section,
    play,
    play_judged,
    result,
    section,
    served,
)
from orchestry.engine.estimate import Dollars, estimate


@pytest.mark.slow
def test_configurations_repeat_and_vary() -> None:
    configs = [draw(seed) for seed in range(16)]
    assert configs[7] == draw(7)
    assert {config.task for config in configs} == {"words", "relay", "duet", "until"}
    assert {config.search.strategy for config in configs} == {"beam", "best_of_n", "single"}
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


def test_the_first_part_plays_without_judge_and_the_second_with_it() -> None:
    assert not any(draw(seed).judge.enabled for seed in range(4))
    configs = [draw_judged(seed, "http://127.0.0.1:1") for seed in range(16)]
    assert configs[7] == draw_judged(7, "http://127.0.0.1:1")
    assert {config.judge.enabled for config in configs} == {None}, "on by default for both"
    assert {config.provider.name for config in configs} == {"anthropic", "openai"}
    assert {config.behaviors.enabled for config in configs} == {True, False}
    assert all(6 <= served(seed, 64).output_tokens <= 49 for seed in range(16))


def test_the_second_part_is_counted_with_and_without_learning() -> None:
    foretold = (Dollars(p5=1.0, expected=2.0, p95=4.0, max=top) for top in (8.0, None))
    seeds = [
        next(s for s in range(99) if draw_judged(s, "").behaviors.enabled is learns)
        for learns in (False, True)
    ]
    outcomes = [
        Outcome(seed, draw_judged(seed, ""), dollars, usd, "done")
        for seed, dollars, usd in zip(seeds, foretold, (2.0, 9.0), strict=True)
    ]
    found = judged_result(outcomes)
    assert (found["within"], found["learned"], found["learned_within"]) == (1, 1, 0)
    assert (found["with_max"], found["above_max"], found["least_max_over_real"]) == (1, 0, 4.0)
    assert "**1 of 2**" in judged_section(found)


@pytest.mark.slow
def test_a_judged_run_over_http_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "loopback")
    found = judged_result([play_judged(seed) for seed in (5003, 5006, 5010)])
    assert found["within"] >= 2
    assert found["learned"] == 1
    assert found["above_max"] == 0


@pytest.mark.slow
def test_most_of_a_few_runs_are_foretold_and_none_passes_the_maximum() -> None:
    found = result([play(seed) for seed in range(5000, 5008)], 1.0)
    assert found["within"] >= 6
    assert found["above_max"] == 0
