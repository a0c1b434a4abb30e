"""The front keeps what is best somewhere, and drops what another one covers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestry.backends.api.front import best, front

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
