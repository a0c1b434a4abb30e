"""What a task said of bad work again and again, weighed by the reward that went with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestry.backends.api.remarks import Remark, remarks
from orchestry.core.types import Part, Score
from orchestry.store.records import EpisodeRecord, NodeRecord
from tests.backends.api.test_learner import episode_of, node


def leaf(id: str, value: float, said: str) -> NodeRecord:
    score = Score(parts=(Part(name="reward", value=value),), feedback=said)
    return node(id, value).model_copy(update={"score": score})


def episode(number: int, *leaves: tuple[float, str], problem: str = "") -> EpisodeRecord:
    """One that was drawn in one move."""
    found = [leaf(f"0.{place}", *one) for place, one in enumerate(leaves)]
    own = {"episode": number, "problem": problem or f"p{number}", "best": "0.0"}
    return episode_of(()).model_copy(update={**own, "nodes": (node("0", 0.0), *found)})


def texts(found: Sequence[Remark]) -> list[str]:
    return [one.text for one in found]


def test_sentences_are_weighed_by_the_loss_that_goes_with_them() -> None:
    bad, mild = "The writer defines no aux.", "No title was found!"
    first = episode(1, (0.0, f"{bad} It passes 1 of 3 tests."), (0.4, mild), (1.0, ""))
    second = episode(2, (0.0, f"{bad}\n\nCode taken:\nreturn aux(word)"), (0.4, mild), (1.0, ""))
    dear, cheap = remarks([first, second])
    assert texts([dear, cheap]) == [bad, mild]
    assert dear.loss == pytest.approx(0.7 * 2 / 6)
    assert cheap.loss == pytest.approx(0.1 * 2 / 6)
    assert (dear.count, dear.among, dear.episodes, dear.problems) == (2, 6, (1, 2), ("p1", "p2"))


def test_what_is_of_one_case_or_costs_nothing_is_left_out() -> None:
    once = [episode(1, (0.1, "A comma is missing."), (0.9, "")), episode(2, (0.5, ""))]
    assert remarks(once) == []
    again = [episode(n, (0.1, "A comma is missing."), (0.9, ""), problem="p") for n in (1, 2)]
    assert remarks(again) == []  # two episodes of one problem
    praised = [episode(n, (0.9, "This is well done."), (0.1, "")) for n in (1, 2)]
    assert remarks(praised) == []
    assert remarks([]) == []


def test_what_is_said_of_all_is_compared_with_the_best_value() -> None:
    locked = [
        episode(n, (0.25, "Nothing calls aux."), (0.35, "Nothing calls aux.")) for n in (1, 2)
    ]
    (one,) = remarks(locked)
    assert one.loss == pytest.approx(0.7)


def test_what_is_said_of_all_comes_last() -> None:
    said, fault = "The answer is within the limit.", "The writer defines no aux."
    mixed = [episode(n, (0.2, f"{said} {fault}"), (0.5, said)) for n in (1, 2)]
    first, last = remarks(mixed)
    assert texts([first, last]) == [fault, said]
    assert last.loss > first.loss
    assert (first.told, last.told) == (
        "which earned 0.30 less than the others",
        "which earned 0.35",
    )


def test_a_rating_replaces_the_value() -> None:
    rated = [episode(n, (1.0, "It is too long."), (1.0, "")) for n in (1, 2)]
    assert remarks(rated) == []
    (one,) = remarks(rated, {(1, "0.0"): 0.0, (2, "0.0"): 0.0})
    assert one.loss == pytest.approx(0.5)


def test_a_sentence_concerns_the_agent_that_it_names_or_all() -> None:
    roles = ("helper", "main")
    of = {
        text: Remark(text, 0.1, 2, 4, (), ())
        for text in ("The helper's answer is empty.", "It is.")
    }
    assert [of["The helper's answer is empty."].concerns(role, roles) for role in roles] == [
        True,
        False,
    ]
    assert all(of["It is."].concerns(role, roles) for role in roles)
