"""One fold of the journal: the books are right, and a damaged journal still has some."""

from __future__ import annotations

import pytest

from orchestry.core.errors import StoreError
from orchestry.core.types import Completion
from orchestry.store.journal import (
    Answered,
    Counted,
    Evaluated,
    Event,
    Learned,
    Lost,
    Opened,
    Reserved,
)
from orchestry.store.summary import books, replay


def answered(call: int, usd: float, at: float) -> Answered:
    completion = Completion(text="a", model="m", input_tokens=3, output_tokens=2, usd=usd)
    return Answered(
        call=call,
        key=f"k{call}",
        agent="writer",
        purpose="act",
        source="provider",
        completion=completion,
        at=at,
    )


EVENTS: list[Event] = [
    Opened(at=10.0, provider="p", model="m"),
    Evaluated(update=0, reward=0.2, tags={}, at=11.0),
    Reserved(call=0, key="k0", usd=0.5),
    answered(0, 0.1, 12.0),
    Reserved(call=1, key="k1", usd=0.5),
    Lost(call=1, why="timeout"),
    Counted(call=1, key="k1", usd=0.3),
    Learned(update=1, state={}, at=13.0),
    Evaluated(update=1, reward=0.6, tags={}, at=13.0),
    Learned(update=2, state={}, at=14.0),
    Evaluated(update=2, reward=0.4, tags={}, at=15.0),
]


def test_the_books_of_a_journal() -> None:
    found = books(EVENTS)
    assert (found.cost_usd, found.lost_usd) == (0.4, 0.3)
    assert [(row.agent, row.calls, row.usd) for row in found.usage] == [("writer", 1, 0.1)]
    assert (found.updates, found.best_update, found.seconds) == (2, 1, 5.0)
    assert found.dev_rewards == {"before": 0.2, "last": 0.4, "best": 0.6}


@pytest.mark.parametrize(("missing", "cost"), [(2, 0.4), (4, 0.4), (5, 0.4), (6, 0.6)])
def test_a_line_that_can_not_be_read_costs_no_other(missing: int, cost: float) -> None:
    kept = [event for place, event in enumerate(EVENTS) if place != missing]
    assert books(kept).cost_usd == cost


def test_a_run_that_goes_on_does_not_take_a_damaged_journal() -> None:
    with pytest.raises(StoreError, match="ends call 0, which it never reserved"):
        replay([event for event in EVENTS if not isinstance(event, Reserved)])
