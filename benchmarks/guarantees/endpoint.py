"""The address at which programs ask their agents: what a call pays for it, and 10,000 with faults.

    python -m benchmarks.guarantees.endpoint [--rounds N] [--write]

The programs are processes of their own (benchmarks/server/tasks/caller) that make one call after
the other; the provider is `fake`. Overhead: 32 programs at once, each call answered after 100 ms;
the wall clock from the first call to the last answer, less that of the answers alone, by call.
Faults: one attempt in ten fails, as 429, 529 or 500. Cap: the same with half of those dollars.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.stats import columns, ranged
from orchestry.core.config import validate
from orchestry.engine.run import train
from orchestry.engine.session import Silent
from orchestry.store.run import Run

TASKS = page.ROOT / "benchmarks" / "server" / "tasks"
AT_ONCE, CALLS, LATENCY_S = 32, 32, 0.1
EPISODES = 10
"""Of the run with faults: EPISODES x AT_ONCE x CALLS calls."""
PRICES = {"fake-1": {"input": 10.0, "output": 50.0}}


def config(episodes: int, **more: Any) -> dict[str, Any]:
    """A run of the task as plain data."""
    return {
        "task": "caller",
        "task_path": [str(TASKS)],
        "options": {"calls": CALLS},
        "episodes": episodes,
        "search": {"k_samples": AT_ONCE, "concurrency": AT_ONCE},
        "sampling": {"max_tokens": 16},
        "judge": {"enabled": False},
        "behaviors": {"enabled": False},
        "retry": {"base_s": 0.01, "max_s": 0.1},
        **more,
    }


def played(folder: Path, plain: dict[str, Any]) -> Run:
    """The run, without a word."""
    return train(validate(plain), folder, Silent())


def overhead_ms(folder: Path) -> float:
    """What a call takes more than its answer, in milliseconds."""
    fake = {"name": "fake", "fake": {"latency_s": LATENCY_S, "output_tokens": 8}}
    run = played(folder, config(1, provider=fake))
    ends = [n.score.feedback.split() for n in run.episodes[0].nodes if " " in n.score.feedback]
    began, ended = min(float(a) for a, _ in ends), max(float(b) for _, b in ends)
    return 1000 * (ended - began - CALLS * LATENCY_S) / (AT_ONCE * CALLS)


def many(folder: Path, budget: float | None) -> Run:
    """The run with faults."""
    fake = {"name": "fake", "fake": {"fault_rate": 0.1, "output_tokens": 8}}
    more: dict[str, Any] = {"prices": PRICES, "budget": {"usd": budget}}
    return played(folder, config(EPISODES, provider=fake, **more))


def row(name: str, run: Run, cap: float | None) -> dict[str, str]:
    """Of a run with faults."""
    ends = [leaf.score.total for one in run.episodes for leaf in one.leaves()]
    whole = sum(total == 1.0 for total in ends)
    return {
        "run": name,
        "ended": run.summary.stopped,
        "calls": f"{run.summary.calls:,}",
        "rollouts whose calls were all answered": f"{whole} of {EPISODES * AT_ONCE}",
        "dollars": f"{run.summary.cost_usd:.4f}",
        "cap": "none" if cap is None else f"{cap:.4f}",
        "s": f"{run.summary.seconds:.0f}",
    }


def report(rounds: int, folder: Path) -> str:
    """The section's text."""
    found = list[float]()
    for number in range(rounds):
        found.append(overhead_ms(folder / f"overhead-{number}"))
        print(f"{found[-1]:.2f} ms a call", file=sys.stderr)
    free = many(folder / "faults", None)
    cap = free.summary.cost_usd / 2
    capped = many(folder / "cap", cap)
    if capped.summary.cost_usd > cap:
        raise RuntimeError(f"the cap of {cap} did not hold: {capped.summary.cost_usd}")
    rows = [row("with faults", free, None), row("with faults and a cap", capped, cap)]
    return (
        f"{AT_ONCE} programs at once, {CALLS} calls each, answered after "
        f"{LATENCY_S * 1000:.0f} ms: a call takes {ranged(found, '.2f')} ms more than its answer "
        f"(median and range of {rounds} rounds; programs, run and provider share this machine's "
        "cores).\n\n"
        f"{columns(rows, figures=False)}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="endpoint-") as name:
        text = report(args.rounds, Path(name))
    print(text)
    if args.write:
        command = f"python -m benchmarks.guarantees.endpoint --rounds {args.rounds} --write"
        page.write("endpoint", command, text)


if __name__ == "__main__":
    main()
