"""The race never errs more often than it says, and finds what a run is planned to find."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import islice, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.backends.api.race import (
    DATES,
    FIRST,
    HOPELESS,
    LOSS_LEVEL,
    Entrant,
    Race,
    bet_of,
    interval,
    kept_for,
    pairs_for,
    shown,
    spread,
)
from orchestry.core.errors import TaskError

gains = st.lists(st.floats(-1.0, 1.0), max_size=40)
loans = st.floats(0.0005, 0.5)


def noisy(seed: int, mean: float, sd: float) -> Iterator[float]:
    """Gains without end: normal, cut at -1 and 1."""
    rng = random.Random(seed)
    while True:
        yield max(-1.0, min(1.0, rng.gauss(mean, sd)))


def after(seen: list[float], loan: float, kind: str = "candidate", left: float = 100.0) -> Entrant:
    entrant = Entrant.model_validate({"behavior": "b", "kind": kind}).lent(loan)
    for place, gain in enumerate(seen):
        entrant = entrant.seen(gain, left - place)
    return entrant


@pytest.mark.parametrize(
    "coin",
    [
        {0.05: 0.5, -0.05: 0.5},
        {1.0: 0.5, -1.0: 0.5},
        {1.0: 0.2, -0.25: 0.8},  # seldom a large gain, else a small loss
        {0.25: 0.8, -1.0: 0.2},
    ],
)
def test_wealth_is_a_martingale_over_all_sequences_of_a_fair_coin(coin: dict[float, float]) -> None:
    mean = 0.0
    for sequence in product(coin, repeat=9):
        weight = math.prod(coin[value] for value in sequence)
        mean += weight * after(list(sequence), 0.1, left=9).worth
    assert mean == pytest.approx(0.1, abs=1e-12)


def test_under_a_loss_wealth_falls_in_the_mean() -> None:
    coin, mean = {0.5: 0.45, -0.5: 0.55}, 0.0
    for sequence in product(coin, repeat=9):
        mean += math.prod(coin[v] for v in sequence) * after(list(sequence), 0.1).worth
    assert mean < 0.1


def test_wealth_stays_whole_over_the_dates() -> None:
    entrant = after(list(islice(noisy(0, 0.0, 0.2), max(DATES) + 1)), 0.01)
    assert entrant.wealth[:-1] == (0.0,) * len(DATES), "what did not win by its date went on"
    assert entrant.wealth[-1] == entrant.worth > 0.0
    later = entrant.lent(0.01)
    assert later.worth == pytest.approx(entrant.worth + 0.01)
    assert later.wealth[:-1] == (0.0,) * len(DATES), "dates that are past get nothing more"


@given(st.lists(st.floats(-1.0, 0.0), max_size=40), loans)
def test_what_never_gained_is_never_accepted(seen: list[float], loan: float) -> None:
    assert after(seen, loan).worth <= loan + 1e-12


@given(gains, st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
def test_a_better_last_pair_is_more_evidence(seen: list[float], one: float, other: float) -> None:
    worse, better = sorted((one, other))
    low, high = (after([*seen, last], 0.05) for last in (worse, better))
    assert low.e_value <= high.e_value


@given(gains)
def test_a_retest_bets_on_the_opposite(seen: list[float]) -> None:
    kept = after(seen, LOSS_LEVEL, "retest")
    turned = after([-gain for gain in seen], LOSS_LEVEL)
    assert kept.wealth == turned.wealth
    assert kept.chance(50.0) == pytest.approx(turned.chance(50.0))
    assert kept.lift == pytest.approx(-turned.lift)


@given(st.floats(1e-13, 1.0), st.floats(0.01, 1.0), st.floats(1.0, 1000.0))
def test_no_bet_can_lose_more_than_there_is(wealth: float, sd: float, pairs: float) -> None:
    assert 0.0 <= bet_of(wealth, sd, pairs) < 1.0


@given(gains)
def test_the_interval_holds_the_lift(seen: list[float]) -> None:
    low, high = interval(seen)
    lift = after(seen, 0.05).lift
    assert -1.0 <= low <= lift + 1e-9
    assert lift - 1e-9 <= high <= 1.0


def test_the_interval_covers_the_mean_at_the_stop_which_favours_winners() -> None:
    covered, widths = 0, []
    for seed in range(200):
        entrant = Entrant(behavior="b").lent(0.05)
        for place, gain in enumerate(islice(noisy(seed, 0.1, 0.3), 200)):
            entrant = entrant.seen(gain, 200.0 - place)
            if entrant.worth >= 1.0:
                break
        low, high = interval(entrant.gains)
        covered += low <= 0.1 <= high
        widths.append(high - low)
    assert covered >= 190
    assert fmean(widths) < 0.5


@pytest.mark.parametrize("bad", [1.0000001, -1.5, float("nan"), float("inf")])
def test_a_gain_that_no_reward_gives_is_refused(bad: float) -> None:
    with pytest.raises(TaskError, match=r"outside \[-1, 1\]: let the task's reward"):
        after([0.1, bad], 0.05)


@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_the_ends_of_the_scale_break_nothing(value: float) -> None:
    entrant = after([value] * 300, 1e-9)
    assert math.isfinite(entrant.worth)
    assert 0.0 <= entrant.chance(10.0) <= 1.0
    low, high = interval(entrant.gains)
    assert low <= value <= high


def test_what_pairs_show_and_how_many_show_it_are_inverse() -> None:
    assert shown(0.3, pairs_for(0.1, 0.3, 0.01), 0.01) == pytest.approx(0.1)
    assert pairs_for(0.05, 0.3, 0.01) == pytest.approx(4 * pairs_for(0.1, 0.3, 0.01))
    assert spread([]) == 0.3
    assert spread([0.1] * 500) == pytest.approx(0.1, abs=0.01)


def test_loans_and_returns_leave_the_pool_whole() -> None:
    race = Race(pool=0.05).entered(["a", "b", "c"], kept=0.02)
    assert race.pool == pytest.approx(0.02)
    first = race.entrants[0]
    assert first.borrowed == pytest.approx(0.03 / 3)
    poor = first.seen(-1.0, 50.0)
    assert race.put(poor).left(poor).pool == pytest.approx(race.pool + poor.worth)
    rich = first.model_copy(update={"wealth": (1.5, 0.0, 0.0)})
    assert race.put(rich).left(rich).pool == pytest.approx(race.pool + rich.borrowed)
    won = race.put(rich).accepted(rich)
    assert [one.behavior for one in won.entrants] == ["b", "c"]
    assert won.pool == pytest.approx(race.pool + rich.borrowed)
    assert race.entered(["d"], kept=0.0).pool == pytest.approx(0.0)
    assert race.entered([], kept=0.0) == race
    backed = race.backed(50.0, kept=0.01)
    assert backed.pool == pytest.approx(0.01)
    assert sum(one.borrowed for one in backed.entrants) == pytest.approx(0.04)


def test_nothing_is_kept_after_the_last_update_and_less_after_each() -> None:
    kept = [kept_for(update, 4) for update in (1, 2, 3, 4)]
    assert kept == [14 / 30, 5 / 30, 1 / 30, 0.0]
    assert (kept_for(5, 4), kept_for(1, 0), kept_for(1, 1)) == (0.0, 0.0, 0.0)


def test_a_retest_borrows_nothing_from_the_pool() -> None:
    race = Race(pool=0.05).retested("a")
    assert race.pool == 0.05
    assert race.candidates == ()


def null_run(seed: int) -> bool:
    """Whether a run of four cohorts of four that gain nothing, on pass or fail, accepts one."""
    rng = random.Random(seed)
    race, played = Race(pool=0.05), 0
    for update in range(4):
        kept = 0.05 * kept_for(update + 1, 4)
        race = race.entered([f"{update} {place}" for place in range(4)], kept)
        for _ in range(40):
            played += 1
            for one in race.candidates:
                one = one.seen(rng.choice((-1.0, 0.0, 0.0, 1.0)), 160.0 - played)
                race = race.put(one)
                if one.worth >= 1.0:
                    return True
                if len(one.gains) >= FIRST and one.chance(160.0 - played) < HOPELESS:
                    race = race.left(one)
            race = race.backed(160.0 - played, kept)
    return False


def test_the_false_acceptance_rate_holds_over_a_whole_run() -> None:
    assert fmean(null_run(seed) for seed in range(120)) <= 0.06


def test_a_large_gain_is_found_soon_and_a_loss_has_soon_no_chance() -> None:
    won = [soonest(seed, 0.2, 0.25) for seed in range(20)]
    assert fmean(won) < 40
    lost = after(list(islice(noisy(1, -0.2, 0.25), 24)), 0.01)
    assert lost.chance(100.0) < HOPELESS


def soonest(seed: int, mean: float, sd: float) -> int:
    entrant = Entrant(behavior="b").lent(0.01)
    for place, gain in enumerate(islice(noisy(seed, mean, sd), 150)):
        entrant = entrant.seen(gain, 150.0 - place)
        if entrant.worth >= 1.0:
            break
    return len(entrant.gains)
