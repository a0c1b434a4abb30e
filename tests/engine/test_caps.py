"""What a cap finishes: whole runs on the fake provider, whose answers differ in length."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.engine.plan import Plan
from orchestry.engine.session import Silent

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
WORTH = 0.0249
"""Dollars of an episode, on average: 20 calls."""
SETS = (
    "task=words",
    f"task_path=[{TASKS}]",
    "provider.name=fake",
    "prices.fake-1.input=1",
    "prices.fake-1.output=5",
    "judge.enabled=false",
    "behaviors.enabled=false",
    "provider.fake.latency_s=0.003",
    "provider.fake.latency_sigma=1",
    "search.episodes_in_flight=16",
)


class Watch(Silent):
    """Keeps the plan of a run."""

    plan: Plan

    def started(self, folder: Path, plan: Plan, done: int) -> None:
        self.plan = plan


def finished(seed: int, cap: float, *sets: str) -> tuple[int, float]:
    """Episodes that finish under the cap, and the share of the money that lies in them."""
    more = (f"seed={seed}", f"budget.usd={cap}", "episodes=40", *sets)
    config, watch = resolve([], [*SETS, *more], {}), Watch()
    assert isinstance(config, RunConfig)
    with TemporaryDirectory() as folder:
        summary = orchestry.train(config, Path(folder) / "run", watch).summary
    assert summary is not None
    assert summary.stopped == "budget"
    ledger = watch.plan.backend.gateway.ledger
    assert ledger.spent <= cap
    return summary.episodes, ledger.in_finished / max(ledger.spent, 1e-9)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.floats(1.0, 12.0))
def test_a_run_finishes_as_many_episodes_as_one_at_a_time_but_for_one(
    seed: int, worth: float
) -> None:
    many, _ = finished(seed, worth * WORTH)
    alone, _ = finished(seed, worth * WORTH, "search.episodes_in_flight=1")
    assert many >= alone - 1


def test_most_of_the_money_lies_in_finished_episodes() -> None:
    """Sixteen in flight share the cap: first come, first served, they finished 0 and 2."""
    for worth in (5, 10):
        count, share = finished(1, worth * WORTH)
        assert count >= worth - 2
        assert share >= 0.7
