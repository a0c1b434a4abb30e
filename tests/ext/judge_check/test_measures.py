"""The figures of a check, on readings that were worked out by hand, and their intervals."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.ext.judge_check.measures import (
    JudgeMeasures,
    Level,
    Reading,
    Share,
    Sheet,
    advise,
    flip,
    measure,
    share,
)
from orchestry.judge.ranking import sign

Groups = list[list[float]]
NOTHING = JudgeMeasures(
    swap_consistency=None,
    repeat_flips=None,
    position_effect=None,
    agreement=None,
    agreement_twice=None,
    rank_correlation=None,
    rank_correlation_twice=None,
    tied=None,
    verdicts={},
)


def rated(order: tuple[int, ...], draw: int, *numbers: float) -> Reading:
    return Reading(order, draw, "rated" if numbers else "malformed", numbers)


# --- one sheet, by hand ---------------------------------------------------------------------------

FORWARD, BACKWARD = (0, 1, 2), (2, 1, 0)
SHEET = Sheet(
    "p",
    (0.9, 0.5, 0.5),  # pairs of different worth: (0, 1) and (0, 2)
    (
        rated(FORWARD, 0, 0.8, 0.6, 0.4),
        rated(BACKWARD, 0, 0.6, 0.6, 0.8),
        rated(FORWARD, 1, 0.8, 0.9, 0.4),
        rated(BACKWARD, 1),
    ),
)


def test_a_sheet_by_hand() -> None:
    found = measure([SHEET])
    # signs of pairs 01, 02, 12: + + +; 0 - -; - + +
    assert found.swap_consistency is not None
    assert found.swap_consistency.value == pytest.approx((0.5 + 0 + 0) / 3)
    assert found.repeat_flips is not None
    assert found.repeat_flips.value == pytest.approx(1 / 3)
    assert found.agreement is not None
    assert found.agreement.pairs == 2
    assert found.agreement.value == pytest.approx((0.5 + 2 / 3) / 2)
    assert found.tied == pytest.approx(1 / 6)
    # child 0 first: 0.8 - 0.6; child 2 first: 0.8 - 0.4
    assert found.position_effect == pytest.approx(10 * (0.2 + 0.4) / 2)
    assert found.verdicts == {"rated": 3, "malformed": 1}
    # the first draw combined: 0.7, 0.6, 0.6, so right and right; the second is its one reading
    assert found.agreement_twice is not None
    assert found.agreement_twice.value == pytest.approx((1 + 0 + 1 + 1) / 4)


def test_nothing_measured_is_none_throughout() -> None:
    assert measure([]) == NOTHING
    lost = Sheet("p", (1.0, 0.0), tuple(rated((0, 1), draw) for draw in (0, 1)))
    assert measure([lost]) == NOTHING.model_copy(update={"verdicts": {"malformed": 2}})


def test_signs_and_flips() -> None:
    assert (sign(0.1 + 0.2, 0.3), sign(0.4, 0.3), sign(0.3, 0.4)) == (0, 1, -1)
    assert flip(np.array([1, 1, 1, 0]), np.array([1, -1, 0, 0])).tolist() == [0, 1, 0.5, 0]


# --- intervals ------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=6), max_size=12))
def test_an_interval_holds_its_share(groups: Groups) -> None:
    found = share(groups)
    pairs = sum(map(len, groups))
    assert (found is None) == (pairs == 0)
    if found is not None:
        assert found.pairs == pairs
        assert 0.0 <= found.low <= found.value + 1e-9
        assert found.value - 1e-9 <= found.high <= 1.0
        assert found.high - found.low > 0.01


def independent(rng: random.Random) -> Groups:
    return [[float(rng.random() < 0.7) for _ in range(6)] for _ in range(12)]


def clustered(rng: random.Random) -> Groups:
    """All pairs of a problem are right or wrong together."""
    return [[float(rng.random() < 0.7)] * 6 for _ in range(12)]


@pytest.mark.parametrize("world", [independent, clustered])
def test_an_interval_covers_the_truth(world: object) -> None:
    assert callable(world)
    rng, covered = random.Random(1), 0
    for _ in range(1000):
        found = share(world(rng))
        assert found is not None
        covered += found.low <= 0.7 <= found.high
    assert covered >= 930


def test_dependence_and_few_problems_widen_it() -> None:
    def width(groups: Groups) -> float:
        found = share(groups)
        assert found is not None
        return found.high - found.low

    mixed, apart = [[1.0, 0.0]] * 12, [[1.0, 1.0], [0.0, 0.0]] * 6
    assert width(mixed) < width(apart)
    assert width([[1.0] * 6] * 12) < width([[1.0] * 6] * 3) < width([[1.0] * 6])


# --- advice ---------------------------------------------------------------------------------------


def of(value: float, low: float, high: float) -> Share:
    return Share(value=value, low=low, high=high, pairs=72)


STEADY, SHAKY = of(0.95, 0.9, 1.0), of(0.7, 0.6, 0.8)
GOOD, FAIR, COIN, WIDE = (
    of(0.9, 0.85, 0.95),
    of(0.65, 0.55, 0.75),
    of(0.5, 0.42, 0.58),
    of(0.6, 0.4, 0.8),
)


@pytest.mark.parametrize(
    ("once", "twice", "swap", "effect", "level", "words"),
    [
        (GOOD, GOOD, STEADY, 0.2, "trustworthy", "places do not sway it"),
        (GOOD, GOOD, STEADY, 1.5, "trustworthy", "judge.repeats=2"),
        (FAIR, GOOD, SHAKY, 0.0, "trustworthy", "a swap flips 25% of the pairs more"),
        (FAIR, FAIR, STEADY, 0.0, "usable", "usable: agrees"),
        (FAIR, FAIR, SHAKY, 0.0, "usable", "usable with judge.repeats=2"),
        (COIN, FAIR, STEADY, 0.0, "usable", "usable with judge.repeats=2"),
        (COIN, COIN, STEADY, 0.0, "chance", "50% of 72 pairs (95 % interval 42% to 58%)"),
        (WIDE, WIDE, STEADY, 0.0, "unsure", "--problems"),
    ],
)
def test_advice_rests_on_the_figures(
    once: Share, twice: Share, swap: Share, effect: float, level: Level, words: str
) -> None:
    found = NOTHING.model_copy(
        update={
            "agreement": once,
            "agreement_twice": twice,
            "swap_consistency": swap,
            "repeat_flips": of(0.05, 0.0, 0.1),
            "position_effect": effect,
            "verdicts": {"rated": 45, "malformed": 3},
        }
    )
    advice = advise(found)
    assert advice.level == level
    assert words in advice.text


def test_advice_without_figures() -> None:
    assert advise(NOTHING).level == "unmeasured"
    many = NOTHING.model_copy(update={"verdicts": {"rated": 7, "malformed": 3}})
    assert advise(many).level == "unusable"
    assert "30% of its answers" in advise(many).text
