"""What runs cost: dollars by use, calls, tokens, and time."""

from __future__ import annotations

from collections.abc import Iterable

from orchestry.report.experiment import Experiment
from orchestry.report.salvage import Salvaged
from orchestry.report.words import dollars, duration
from orchestry.store.summary import seconds

PURPOSES = {
    "act": "the agents' answers",
    "judge": "the judge",
    "credit": "replays for credit",
    "dev": "dev problems",
}
"""Of calls; any other is named as it is."""


def costs(experiment: Experiment) -> dict[str, str]:
    """What the run came to, and what was measured around it, by name."""
    run = experiment.run
    found = _of(run, seconds(run.events))
    for name, runs in (
        ("evaluations", experiment.evaluations),
        ("baselines", experiment.baselines),
    ):
        found |= _around(name, list(runs.values()))
    return found


def _of(run: Salvaged, wall: float) -> dict[str, str]:
    summary = run.summary
    return {
        "dollars": dollars(summary.cost_usd),
        **{f"of it for {use}": dollars(usd) for use, usd in _uses(run).items()},
        "of it for calls without an answer": dollars(summary.lost_usd),
        **{f"of it at {name}": dollars(usd) for name, usd in summary.cost_by_provider.items()},
        "calls answered by a model": f"{summary.calls:,}",
        **{f"of them at {name}": f"{n:,}" for name, n in summary.calls_by_provider.items()},
        "answers from the cache": f"{summary.cache_hits:,}",
        "tokens in": f"{summary.input_tokens:,}",
        "tokens out": f"{summary.output_tokens:,}",
        "wall time": duration(wall),
        "tokens out a second": f"{summary.output_tokens / wall:,.0f}" if wall else "-",
    }


def _uses(run: Salvaged) -> dict[str, float]:
    """Dollars by purpose of the calls."""
    found: dict[str, float] = {}
    for row in run.summary.usage:
        use = PURPOSES.get(row.purpose, row.purpose)
        found[use] = found.get(use, 0.0) + row.usd
    return found


def _around(name: str, runs: Iterable[Salvaged]) -> dict[str, str]:
    """The sums over a run's evaluations, or its baselines; nothing where there are none."""
    summaries = [run.summary for run in runs]
    if not summaries:
        return {}
    return {
        f"{name}: dollars": dollars(sum(summary.cost_usd for summary in summaries)),
        f"{name}: calls answered by a model": f"{sum(summary.calls for summary in summaries):,}",
    }


def by_agent(run: Salvaged) -> list[list[str]]:
    """A row an agent and purpose: calls, from the cache, tokens in and out, dollars."""
    return [
        [
            row.agent,
            PURPOSES.get(row.purpose, row.purpose),
            f"{row.calls:,}",
            f"{row.cache_hits:,}",
            f"{row.input_tokens:,}",
            f"{row.output_tokens:,}",
            f"{row.usd:.4f}",
        ]
        for row in run.summary.usage
    ]
