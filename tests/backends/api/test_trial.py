"""The sequential test never errs more often than it says, and finds what it was planned to find."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.backends.api.trial import FIRST, Ruling, best, front, level, retire, rule
from orchestry.core.errors import TaskError

differences = st.lists(st.floats(-1.0, 1.0), max_size=40)
levels = st.floats(0.0005, 0.5)


def noisy(seed: int, mean: float, sd: float) -> Iterator[float]:
    """Differences without end: normal, cut at -1 and 1."""
    rng = random.Random(seed)
    while True:
        yield max(-1.0, min(1.0, rng.gauss(mean, sd)))


def expected(coin: dict[float, float], length: int, chance: float) -> tuple[float, float]:
    """Mean e-value and chance of acceptance over all sequences of a coin {value: chance}."""
    mean = accepted = 0.0
    for sequence in product(coin, repeat=length):
        weight = math.prod(coin[value] for value in sequence)
        ruling = rule(sequence, chance, length)
        mean += weight * ruling.e_value
        accepted += weight * (ruling.verdict == "accept")
    return mean, accepted


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
    mean, accepted = expected(coin, 10, 0.1)
    assert mean == pytest.approx(1.0, abs=1e-12)
    assert accepted <= 0.1


def test_under_a_loss_the_mean_e_value_is_below_one() -> None:
    mean, _ = expected({0.5: 0.45, -0.5: 0.55}, 11, 0.1)
    assert mean < 1.0


def test_a_fair_coin_is_accepted_sometimes_so_the_bound_is_put_to_the_test() -> None:
    _, accepted = expected({1.0: 0.5, -1.0: 0.5}, 12, 0.2)
    assert 0.1 < accepted <= 0.2


@given(st.lists(st.floats(-1.0, 0.0), max_size=60), levels)
def test_what_never_won_a_pair_is_never_accepted(seen: list[float], chance: float) -> None:
    ruling = rule(seen, chance, 60)
    assert ruling.verdict != "accept"
    assert ruling.e_value <= 1.0


@given(differences, levels, st.integers(1, 60))
def test_it_does_not_matter_how_many_pairs_are_played_at_a_time(
    seen: list[float], chance: float, most: int
) -> None:
    whole = rule(seen, chance, most)
    assert whole.pairs <= most
    assert rule(seen[: whole.pairs], chance, most) == whole
    assert all(rule(seen[:n], chance, most).verdict == "open" for n in range(whole.pairs))


@given(differences, st.floats(-1.0, 1.0), st.floats(-1.0, 1.0))
def test_a_better_last_pair_is_more_evidence(seen: list[float], one: float, other: float) -> None:
    worse, better = sorted((one, other))
    low, high = (rule([*seen, last], 0.05, 100) for last in (worse, better))
    assert low.e_value <= high.e_value
    if low.verdict == "accept":
        assert high.verdict == "accept"


@given(differences, levels)
def test_the_interval_holds_the_lift(seen: list[float], chance: float) -> None:
    ruling = rule(seen, chance, 40)
    assert -1.0 <= ruling.low <= ruling.lift + 1e-9
    assert ruling.lift - 1e-9 <= ruling.high <= 1.0


@given(differences)
def test_swapped_arms_give_the_mirrored_interval(seen: list[float]) -> None:
    kept, lost = retire(seen, 40), rule([-d for d in seen], 0.05, 40)
    assert (kept.pairs, kept.e_value) == (lost.pairs, lost.e_value)
    assert (kept.lift, kept.low, kept.high) == (-lost.lift, -lost.high, -lost.low)


def test_the_interval_covers_the_mean_at_the_stop_which_favours_winners() -> None:
    rulings = [rule(noisy(seed, 0.1, 0.3), 0.05, 200) for seed in range(200)]
    assert sum(r.low <= 0.1 <= r.high for r in rulings) >= 190
    assert fmean(r.high - r.low for r in rulings) < 0.32


def test_the_levels_of_all_trials_add_up_to_alpha() -> None:
    shares = [level(0.05, number) for number in range(1, 10_000)]
    assert shares == sorted(shares, reverse=True)
    assert 0.0499 < math.fsum(shares) < 0.05
    with pytest.raises(ValueError, match="numbered from 1, not 0"):
        level(0.05, 0)


@pytest.mark.parametrize("bad", [1.0000001, -1.5, float("nan"), float("inf")])
def test_a_difference_that_no_reward_gives_is_refused(bad: float) -> None:
    with pytest.raises(TaskError, match=r"outside \[-1, 1\]: let the task's reward"):
        rule([0.1, bad], 0.05, 100)
    with pytest.raises(TaskError, match=r"outside \[-1, 1\]"):
        retire([0.1, bad], 100)


def test_a_trial_without_a_level_or_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"level in \(0, 1\)"):
        rule([], 0.0, 100)
    with pytest.raises(ValueError, match="pairs >= 1"):
        rule([], 0.05, 0)


def test_before_the_first_pair_nothing_is_known() -> None:
    assert rule([], 0.05, 100) == Ruling(
        verdict="open", why="", pairs=0, lift=0.0, low=-1.0, high=1.0, e_value=1.0
    )


def test_a_large_gain_wins_soon_and_a_large_loss_ends_soon() -> None:
    won, lost = rule(noisy(0, 0.3, 0.3), 0.025, 1000), rule(noisy(0, -0.3, 0.3), 0.025, 1000)
    assert (won.verdict, won.why) == ("accept", "won")
    assert (lost.verdict, lost.why) == ("reject", "clear loss")
    assert won.pairs < 60
    assert lost.pairs < 40
    assert won.e_value >= 40 > lost.e_value


def test_no_difference_at_all_is_no_gain() -> None:
    ruling = rule([0.0] * 1000, 0.025, 1000)
    assert (ruling.verdict, ruling.why) == ("reject", f"no gain in {ruling.pairs} pairs")
    assert FIRST <= ruling.pairs < 200
    assert ruling.e_value == 1.0


@pytest.mark.parametrize("length", [1, 8, 500])
@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_the_ends_of_the_scale_break_nothing(value: float, length: int) -> None:
    ruling = rule([value] * length, 1e-9, 500)
    assert ruling.low <= value <= ruling.high


def test_retirement_tells_harm_from_help() -> None:
    harm, help_ = retire(noisy(1, -0.2, 0.3), 400), retire(noisy(1, 0.2, 0.3), 400)
    assert (harm.verdict, harm.why) == ("reject", "clear loss")
    assert harm.lift < 0
    assert harm.e_value >= 20
    assert (help_.verdict, help_.why) == ("accept", "still helps")
    assert retire([0.0] * 400, 400).why.startswith("no gain in ")
    assert retire([0.0] * 400, 400).verdict == "reject"
    assert retire([0.1], 400).verdict == "open"


def test_a_gain_of_five_points_is_found_whatever_the_noise() -> None:
    for sd, trials in ((0.1, 60), (0.2, 60), (0.35, 40)):
        rulings = [rule(noisy(seed, 0.05, sd), level(0.05, 1), 1000) for seed in range(trials)]
        assert fmean(r.verdict == "accept" for r in rulings) >= 0.8


def false_acceptance(run: int, corrected: bool) -> bool:
    """Whether a run of 8 trials of candidates that gain nothing, on pass or fail, accepts one."""
    rng = random.Random(run)
    for number in range(1, 9):
        chance = level(0.05, number) if corrected else 0.05
        if rule(rng.choices((-1.0, 1.0), k=24), chance, 24).verdict == "accept":
            return True
    return False


def test_the_false_acceptance_rate_holds_over_a_whole_run() -> None:
    assert fmean(false_acceptance(run, corrected=True) for run in range(400)) <= 0.05
    assert fmean(false_acceptance(run, corrected=False) for run in range(100)) > 0.1


scores = st.dictionaries(
    st.sampled_from("abcdef"),
    st.dictionaries(st.sampled_from(["p", "q", "r", "s"]), st.sampled_from([0.0, 0.5, 1.0])),
)


@given(scores)
def test_every_problems_best_score_is_reached_in_the_front(
    played: dict[str, dict[str, float]],
) -> None:
    kept = front(played)
    for problem in {problem for own in played.values() for problem in own}:
        top = max(own[problem] for own in played.values() if problem in own)
        assert any(played[id].get(problem) == top for id in kept)


@given(scores)
def test_each_of_the_front_is_best_somewhere_and_covered_by_none(
    played: dict[str, dict[str, float]],
) -> None:
    for id in front(played):
        own = played[id]
        rivals = [other for name, other in played.items() if name != id]
        assert any(all(own[p] >= other.get(p, own[p]) for other in rivals) for p in own)
        for other in rivals:
            worse = any(p not in other or other[p] < own[p] for p in own)
            assert worse or all(other[p] == own[p] for p in own)


@given(scores)
def test_neither_order_nor_a_covered_candidate_changes_the_front(
    played: dict[str, dict[str, float]],
) -> None:
    kept = front(played)
    assert front(dict(reversed(played.items()))) == kept == sorted(kept)
    assert front({id: played[id] for id in kept}) == kept
    if kept and all(score > 0 for score in played[kept[0]].values()):
        assert front({**played, "x": dict.fromkeys(played[kept[0]], 0.0)}) == kept


def test_a_specialist_stays_beside_a_generalist_of_higher_mean() -> None:
    played = {
        "general": {"p": 0.9, "q": 0.9, "r": 0.1},
        "special": {"p": 0.0, "q": 0.0, "r": 0.2},
        "middling": {"p": 0.5, "q": 0.5, "r": 0.1},
    }
    assert front(played) == ["general", "special"]


def test_one_best_somewhere_by_a_tie_only_is_dropped_where_another_covers_it() -> None:
    assert front({"a": {"p": 1.0, "q": 0.0}, "b": {"p": 1.0, "q": 1.0}}) == ["b"]
    assert front({"a": {"p": 1.0}, "b": {"p": 1.0}}) == ["a", "b"]


def test_a_problem_played_by_one_alone_speaks_for_that_one() -> None:
    assert front({"a": {"p": 0.1, "q": 0.0}, "b": {"p": 0.9}}) == ["a", "b"]
    assert front({"a": {"p": 0.1}, "b": {"p": 0.9, "q": 0.0}}) == ["b"]
    assert front({"a": {}}) == []


def test_the_best_has_the_highest_mean_lift_and_ties_go_by_id() -> None:
    lifts = {"a": {"p": 0.2}, "b": {"p": 0.0, "q": 0.8}, "c": {"q": 0.4}, "d": {"r": 0.9}}
    assert best(lifts, ["c", "b", "a"]) == "b"
    assert best(lifts, front(lifts)) == "d"
