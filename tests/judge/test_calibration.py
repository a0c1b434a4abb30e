"""Agreement and calibration: planted judges, a real judged run, and what a person is shown."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.judge.calibration import (
    PRIOR,
    Calibration,
    Shown,
    agreement,
    calibration,
    extremes,
    find,
    judged_pairs,
    rated,
    read_rating,
    reward_pairs,
    task_reward,
)
from orchestry.store.journal import last_words
from orchestry.store.records import EpisodeRecord
from tests.engine.test_run import config

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
share = st.floats(0.0, 1.0)
some_pairs = st.lists(st.tuples(share, share), max_size=30)


def squares(pairs: list[tuple[float, float]], fitted: Calibration) -> float:
    return sum((rating - fitted(number)) ** 2 for number, rating in pairs)


@given(share)
def test_no_pairs_leave_the_judge_as_it_is(number: float) -> None:
    assert calibration([]) == Calibration(slope=1.0, intercept=0.0, pairs=0)
    assert calibration([])(number) == number


@given(some_pairs, st.lists(share, min_size=2))
def test_it_keeps_the_order_and_the_range(
    pairs: list[tuple[float, float]], numbers: list[float]
) -> None:
    fitted = calibration(pairs)
    said = [fitted(number) for number in sorted(numbers)]
    assert all(0.0 <= a <= b <= 1.0 for a, b in pairwise(said))
    assert fitted.slope >= 0.0
    assert fitted.pairs == len(pairs)


@given(some_pairs)
def test_on_its_own_pairs_it_is_never_worse_than_the_judge(
    pairs: list[tuple[float, float]],
) -> None:
    assert squares(pairs, calibration(pairs)) <= squares(pairs, Calibration()) + 1e-9


@given(some_pairs, st.floats(-0.3, 0.3), st.floats(-1.0, 1.0))
def test_no_other_line_has_less_loss(
    pairs: list[tuple[float, float]], shift: float, tilt: float
) -> None:
    """Loss: squared errors on the pairs, and on PRIOR pairs that agree."""

    def loss(slope: float, intercept: float) -> float:
        grid = [(i + 0.5) / 200 for i in range(200)]
        prior = sum((intercept + (slope - 1) * x) ** 2 for x in grid) * PRIOR / len(grid)
        return prior + sum((y - intercept - slope * x) ** 2 for x, y in pairs)

    fitted = calibration(pairs)
    other = loss(max(0.0, fitted.slope + tilt), fitted.intercept + shift)
    assert loss(fitted.slope, fitted.intercept) <= other + 1e-3


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, -0.2), (0.5, 0.3), (1.5, -0.4)])
def test_many_pairs_recover_a_planted_judge(slope: float, intercept: float) -> None:
    rng = random.Random(7)
    numbers = [rng.random() for _ in range(3000)]
    noisy = [(x, intercept + slope * x + rng.gauss(0, 0.1)) for x in numbers]
    fitted = calibration(noisy)
    assert fitted.slope == pytest.approx(slope, abs=0.03)
    assert fitted.intercept == pytest.approx(intercept, abs=0.02)


def test_a_shift_is_shrunk_by_as_many_pairs_as_the_prior_is_worth() -> None:
    pairs = [((i + 0.5) / 10, (i + 0.5) / 10 + 0.2) for i in range(10)]
    assert len(pairs) == PRIOR
    assert calibration(pairs)(0.5) == pytest.approx(0.6)


def test_a_judge_who_is_the_wrong_way_round_counts_for_nothing() -> None:
    fitted = calibration([(i / 99, 1 - i / 99) for i in range(100)])
    assert fitted.slope == 0.0
    assert fitted(0.0) == fitted(1.0) == pytest.approx(0.5)


@given(st.lists(share.map(lambda number: round(number, 2)), max_size=20))
def test_a_judge_who_says_the_same_agrees_wholly(numbers: list[float]) -> None:
    found = agreement([(number, number) for number in numbers])
    assert found.count == len(numbers)
    assert found.pairs == len(numbers) * (len(numbers) - 1) // 2
    assert found.alike == (1.0 if found.pairs else None)
    assert found.difference == (0.0 if numbers else None)
    told_apart = len(numbers) >= 3 and len(set(numbers)) > 1
    assert found.spearman == (pytest.approx(1.0) if told_apart else None)


@given(some_pairs)
def test_turning_the_judge_round_turns_the_agreement_round(
    pairs: list[tuple[float, float]],
) -> None:
    """Pairs that both tie stay alike; every other pair changes sides."""
    tidy = [(round(a, 2), round(b, 2)) for a, b in pairs]
    found, turned = agreement(tidy), agreement([(round(1 - a, 2), b) for a, b in tidy])
    both = sum(tidy[i] == tidy[j] for i in range(len(tidy)) for j in range(i))
    if found.alike is not None and turned.alike is not None:
        assert found.alike + turned.alike == pytest.approx(1 + both / found.pairs)
    if found.spearman is not None:
        assert turned.spearman == pytest.approx(-found.spearman)


def test_agreement_by_hand() -> None:
    found = agreement([(0.1, 0.2), (0.5, 0.2), (0.9, 0.6), (0.7, 0.8)])
    assert found.pairs == 6  # one tied by the person, one the wrong way round
    assert found.alike == pytest.approx(4.5 / 6)
    assert found.difference == pytest.approx((0.1 + 0.3 + 0.3 + 0.1) / 4)
    assert found.spearman == pytest.approx(3.5 / 22.5**0.5)  # of the mean ranks


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[EpisodeRecord]:
    """Two episodes in which the judge rated the reviewer's moves, which the task's score ties."""
    sets = ("task=words", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=2")
    learning = ("judge.enabled=true", "behaviors.enabled=false")
    folder = tmp_path_factory.mktemp("judged") / "run"
    return orchestry.train(resolve([], [*sets, *learning], {}), folder).episodes


def test_a_rating_is_paired_with_the_last_word_of_the_judge_before_it(
    judged: list[EpisodeRecord],
) -> None:
    writer, reviewer, refactorer = judged[0].path(judged[0].best)
    assert (writer.judged, refactorer.judged) == (None, None)
    ratings = {
        (0, writer.id): 0.1,
        (0, reviewer.id): 0.2,
        (0, refactorer.id): 0.3,
        (1, judged[1].best): 0.4,
        (7, "0.0"): 0.5,
    }
    other = judged[1].path(judged[1].best)[1].judged
    assert reviewer.judged is not None
    assert other is not None
    assert judged_pairs(judged, ratings) == [
        (reviewer.judged, 0.2),
        (reviewer.judged, 0.3),
        (other, 0.4),
    ]


def test_the_reward_of_any_node_can_be_compared(judged: list[EpisodeRecord]) -> None:
    writer = judged[1].path(judged[1].best)[0]
    ratings = {(1, judged[1].best): 0.9, (1, writer.id): 0.4}
    assert reward_pairs(judged, ratings) == [
        (writer.score.parts[0].value, 0.4),
        (judged[1].reward, 0.9),
    ]
    assert reward_pairs(judged, {}) == judged_pairs(judged, {}) == []


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[EpisodeRecord]:
    """Six episodes over five problems."""
    return orchestry.train(config(), tmp_path_factory.mktemp("rated") / "run").episodes


def by_kind(found: list[Shown], why: str) -> list[Shown]:
    return [shown for shown in found if shown.why == why]


def test_the_best_and_worst_leaves_one_of_each_a_problem(records: list[EpisodeRecord]) -> None:
    found = extremes(records, 3, 2)
    best, worst = by_kind(found, "best"), by_kind(found, "worst")
    highest, lowest = dict[str, float](), dict[str, float]()
    for record in records:
        for leaf in record.leaves():
            number = task_reward(leaf)
            highest[record.problem] = max(highest.get(record.problem, 0.0), number)
            lowest[record.problem] = min(lowest.get(record.problem, 1.0), number)
    assert sorted(shown.reward for shown in best) == sorted(highest.values())[-3:]
    assert sorted(shown.reward for shown in worst) == sorted(lowest.values())[:2]
    for kind in (best, worst):
        assert len({shown.record.problem for shown in kind}) == len(kind)
    assert len({shown.key for shown in found}) == 5


def test_too_many_asked_for_are_as_many_as_there_are(records: list[EpisodeRecord]) -> None:
    found = extremes(records, 99, 99)
    assert len(by_kind(found, "best")) == len(by_kind(found, "worst")) == 5
    assert len({shown.key for shown in found}) == 10


def test_their_order_is_fixed_and_tells_nothing(records: list[EpisodeRecord]) -> None:
    found = extremes(records, 5, 5)
    assert found == extremes(list(reversed(records)), 5, 5)
    kinds = [shown.why for shown in found]
    assert kinds not in (sorted(kinds), sorted(kinds, reverse=True))


def test_a_trajectory_is_found_by_episode_and_node(records: list[EpisodeRecord]) -> None:
    assert find(records, 4, None).node == records[4].best_node
    first = records[4].path(records[4].best)[0]
    assert find(records, 4, first.id).key == (4, first.id)
    with pytest.raises(ConfigError, match=r"no finished episode 6: choose one of 0, 1, 2, 3, 4, 5"):
        find(records, 6, None)
    for node in ("0", "0.99", ""):
        with pytest.raises(ConfigError, match=rf"node '{node}': choose one of its leaves \(0\.\d"):
            find(records, 4, node)


@pytest.mark.parametrize(("text", "number"), [("0", 0.0), ("7.5", 0.75), (" 10 ", 1.0)])
def test_a_rating_is_read_on_its_scale(text: str, number: float) -> None:
    assert read_rating(text) == number


@pytest.mark.parametrize("text", ["", "good", "-0.1", "10.01", "nan", "inf", "7/10", "7\n8"])
def test_what_is_no_rating_is_named_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="is no rating: give a number from 0") as error:
        read_rating(text)
    assert "\n" not in str(error.value)


def test_the_last_rating_of_a_node_counts(records: list[EpisodeRecord]) -> None:
    one, other = find(records, 0, None), find(records, 1, None)
    said = [rated(one, 0.2, "", 1.0), rated(other, 0.5, "", 2.0), rated(one, 0.9, "no,\n yes", 3.0)]
    assert last_words(said) == {one.key: said[2], other.key: said[1]}
    assert said[2].comment == "no, yes"


def test_a_comment_in_no_encoding_can_be_written(records: list[EpisodeRecord]) -> None:
    event = rated(find(records, 0, None), 0.2, "caf\udce9", 1.0)
    assert "caf?" in event.model_dump_json()
