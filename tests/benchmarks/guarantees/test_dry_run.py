"""The dry run's benchmark on a few configurations of its own population."""

from __future__ import annotations

import pytest

from benchmarks.guarantees.dry_run import (
    MOST_CALLS,
    WIDEST,
    Outcome,
    coverage,
    draw,
    draw_judged,
    earlier,
    play,
    play_judged,
    play_reviewed,
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


def outcome(seed: int, usd: float, top: float | None = 8.0) -> Outcome:
    """Of a wide estimate without an earlier run, and a narrow one with it."""
    alone = Dollars(p5=1.0, expected=2.0, p95=8.0, max=top)
    return Outcome(seed, draw(0), alone, alone.model_copy(update={"p95": 4.0}), usd, "done")


def test_the_result_counts_both_sides_and_the_maximum() -> None:
    found = result([outcome(seed, usd) for seed, usd in enumerate((0.5, 2.0, 5.0, 9))])
    alone, after = found["alone"], found["after_one"]
    assert (alone["within"], alone["below"], alone["above"]) == (2, 1, 1)
    assert (after["within"], after["below"], after["above"]) == (1, 1, 2)
    assert (found["above_max"], after["outside_seeds"]) == (1, [0, 2, 3])
    assert (alone["p95_over_p5"], after["p95_over_p5"]) == (8.0, 4.0)
    assert "| plain | one | **1 of 4** | 1 | 2 | 4.0 |" in coverage({"plain": found})


def test_a_run_without_a_maximum_is_counted_apart() -> None:
    found = result([outcome(0, 4.0), outcome(1, 9.0, None)])
    assert (found["above_max"], found["with_max"]) == (0, 1)
    assert found["least_max_over_real"] == 2.0
    said = section(found, found, found, {"wall_s": 1.25, "cpu_s": 1.0, "load": 0.5})
    assert "**0** of the 2 runs" in said
    assert "takes **1.25 s**" in said


def test_the_earlier_run_is_of_the_same_model_and_often_of_another_task() -> None:
    configs = [(draw(seed), earlier(draw(seed), seed)) for seed in range(16)]
    assert all(one.provider == before.provider for one, before in configs)
    assert all(one.prices == before.prices and before.episodes <= 6 for one, before in configs)
    assert {one.task == before.task for one, before in configs} == {True, False}


def test_the_first_part_plays_without_judge_and_the_second_with_it() -> None:
    assert not any(draw(seed).judge.enabled for seed in range(4))
    configs = [draw_judged(seed, "http://127.0.0.1:1") for seed in range(16)]
    assert configs[7] == draw_judged(7, "http://127.0.0.1:1")
    assert {config.judge.enabled for config in configs} == {None}, "on by default for both"
    assert {config.provider.name for config in configs} == {"anthropic", "openai"}
    assert {config.behaviors.enabled for config in configs} == {True, False}
    assert all(6 <= served(seed, 64).output_tokens <= 49 for seed in range(16))


@pytest.mark.slow
def test_a_judged_run_over_http_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "loopback")
    found = result([play_judged(seed) for seed in (5003, 5006, 5010)])
    assert found["after_one"]["within"] >= 2
    assert found["learned"] == 1
    assert found["above_max"] == 0


@pytest.mark.slow
def test_a_reviewed_run_is_foretold() -> None:
    """Though all siblings of its reviewer go to the judge."""
    found = [play_reviewed(seed) for seed in (5000, 5001)]
    assert all(one.config.task == "code_review" for one in found)
    assert result(found)["after_one"]["within"] >= 1


@pytest.mark.slow
def test_most_of_a_few_runs_are_foretold_and_none_passes_the_maximum() -> None:
    found = result([play(seed) for seed in range(5000, 5008)])
    assert found["alone"]["within"] >= 6
    assert found["after_one"]["within"] >= 6
    assert found["after_one"]["p95_over_p5"] <= WIDEST
    assert found["above_max"] == 0
