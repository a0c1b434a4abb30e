"""What a table of benchmarks.quality.learning would cost, before anybody is asked.

Runs of ours are rehearsed by the library's own dry run. A peer makes as many calls as our training
run; each is taken to cost as much as one of an agent whose system prompt has DSPy's four examples,
since that is the dearest thing that a peer puts there by design. All contestants are taken to
change every prompt, so that no answer is shared in the test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestry.core.config import validate
from orchestry.engine.estimate import Estimate, estimate
from orchestry.report.text import table
from orchestry.task.registry import load_task

DEMOS = 4
LETTERS = 4
"""Characters per token, about."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One task's configs: of our training run (None: nothing is trained), and of a test."""

    task: str
    training: Mapping[str, Any] | None
    testing: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bill:
    """Runs of one kind together."""

    calls: float
    usd: float
    most: float
    """The 95th percentile of the dry run, each run's own."""

    def times(self, count: float) -> Bill:
        return Bill(self.calls * count, self.usd * count, self.most * count)


def forecast(plans: Sequence[Plan], seeds: int, peers: Sequence[str]) -> str:
    """A table of the costs, and their sum."""
    bills = [(plan.task, what, bill) for plan in plans for what, bill in _bills(plan, seeds, peers)]
    rows = [[task, what, f"{b.calls:.0f}", f"{b.usd:.2f}"] for task, what, b in bills]
    calls, usd, most = (
        sum(getattr(bill, name) for _, _, bill in bills) for name in ("calls", "usd", "most")
    )
    rows.append(["all", "", f"{calls:.0f}", f"{usd:.2f}"])
    head = table(["task", "runs", "calls", "USD"], rows)
    return f"{head}\n\n--budget {most:.2f} would be enough if every run came to its 95th percentile"


def _bills(plan: Plan, seeds: int, peers: Sequence[str]) -> list[tuple[str, Bill]]:
    own = _bill(_estimate(plan.testing))
    if plan.training is None:
        return [("headroom", own)]
    training = _bill(_estimate(plan.training))
    padded = _bill(_estimate({**plan.testing, "agents": _padded(plan)}))
    each = padded.times(training.calls / padded.calls)
    return [
        ("ours, training", training.times(seeds)),
        *((f"{name}, training", each.times(seeds)) for name in peers),
        ("off, test", own.times(seeds)),
        *((f"{name}, test", padded.times(seeds)) for name in ("ours", *peers)),
    ]


def _bill(found: Estimate) -> Bill:
    return Bill(found.calls, found.cost_usd.expected, found.cost_usd.p95)


def _estimate(config: Mapping[str, Any]) -> Estimate:
    return estimate(validate({**config, "budget": {"usd": None}}))


def _padded(plan: Plan) -> dict[str, Any]:
    """The agents with system prompts as long as with examples: problems of train, and answers as
    long as the dry run takes them to be."""
    found, task = _estimate(plan.testing), load_task(plan.task)
    answer = "x" * round(LETTERS * found.output_tokens / found.calls)
    demos = [f"{problem.prompt}\n\n{answer}" for problem in task.problems("train")[:DEMOS]]
    return {
        spec.role: {"system_prompt": "\n\n".join([spec.system_prompt, *demos])}
        for spec in task.agents
    }
