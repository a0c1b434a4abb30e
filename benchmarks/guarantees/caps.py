"""How many episodes a cap finishes, and what share of the money lies in them.

Caps are in episodes' worth: so many times what an episode costs on average where no cap binds. The
search plays code_review's beam at default settings with its judge, on prices of claude-sonnet-5, 16
calls at once, against a server with lognormal latencies and answer lengths; learning is off, since
its trials are no part of an episode. Beside it stand the same runs with one episode at a time, and
runs in which 30 % of the calls meet a fault.

    python -m benchmarks.guarantees.caps [--seeds N] [--caps N...] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import orchestry
from benchmarks import page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import Spawned, spawn
from benchmarks.stats import columns
from orchestry.core.config import RunConfig, validate
from orchestry.engine.plan import Plan
from orchestry.engine.session import Silent

COMMAND = "python -m benchmarks.guarantees.caps --write"
MODEL, CONCURRENCY, EPISODES = "claude-sonnet-5", 16, 200
GOAL = 0.85
OPTIONS = Options(
    latency_s=0.1,
    sigma=0.5,
    output_tokens=150,
    output_sigma=0.6,
    input_usd=2.0,
    output_usd=10.0,
)
FAULTS = {
    "rate_limited": 0.08,
    "overloaded": 0.08,
    "error": 0.04,
    "drop": 0.03,
    "error_billed": 0.03,
    "drop_billed": 0.01,
    "busy_billed": 0.01,
    "limited_billed": 0.01,
    "uncounted": 0.01,
}
"""Shares of all calls; each kind is as in benchmarks/server/bill.py."""
FREE, AMPLE_USD = 40, 10.0
"""Episodes of the runs in which no cap binds, and their cap: three times what they cost."""
WAYS: dict[str, dict[str, Any]] = {
    "as many as fit": {},
    "one at a time": {"episodes_in_flight": 1},
}
AT_ONCE = 4
"""Capped runs played side by side, since most of a run is waiting."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. Dollars; `in_finished` is what its finished episodes cost."""

    cap: float
    finished: int
    spent: float
    in_finished: float
    lost: float
    wall_s: float

    @property
    def share(self) -> float:
        return self.in_finished / self.spent if self.spent else 0.0


class _Watch(Silent):
    """Keeps the plan, whose ledger knows what finished episodes cost."""

    plan: Plan

    def started(self, folder: Path, plan: Plan, done: int) -> None:
        self.plan = plan


def play(server: Spawned, seed: int, cap: float | None, **search: Any) -> Outcome:
    """One run; `cap` in dollars, `search` over the defaults. `episodes` is no search setting."""
    episodes = search.pop("episodes", EPISODES)
    config, watch = _config(server, seed, cap, episodes, search), _Watch()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = orchestry.train(config, run_dir=Path(folder) / "run", observer=watch)
        wall = time.perf_counter() - began
        summary = run.summary
    assert summary is not None
    ledger = watch.plan.backend.gateway.ledger
    return Outcome(
        cap or 0.0, summary.episodes, ledger.spent, ledger.in_finished, ledger.lost, wall
    )


def _config(
    server: Spawned, seed: int, cap: float | None, episodes: int, search: dict[str, Any]
) -> RunConfig:
    return validate(
        {
            "task": "code_review",
            "episodes": episodes,
            "seed": seed,
            "provider": {"name": "anthropic", "model": MODEL, "base_url": server.url},
            "search": {"concurrency": CONCURRENCY} | search,
            "budget": {"usd": cap},
            "cache": {"enabled": False},
            "behaviors": {"enabled": False},
            "retry": {"base_s": 0.02, "max_s": 0.2},
        }
    )


@dataclass(frozen=True, slots=True)
class Row:
    """Runs of several seeds under one cap, in episodes' worth."""

    cap: int
    way: str
    outcomes: tuple[Outcome, ...]

    def mean(self, name: str) -> float:
        return fmean(getattr(outcome, name) for outcome in self.outcomes)

    @property
    def share(self) -> float:
        """Of all money that the runs spent, what lies in finished episodes."""
        return self.mean("in_finished") / self.mean("spent")

    def cells(self) -> dict[str, str]:
        shares = [outcome.share for outcome in self.outcomes]
        in_finished = f"**{self.share:.1%}** ({min(shares):.0%} to {max(shares):.0%})"
        return {
            "cap, in episodes' worth": str(self.cap),
            "way": self.way,
            "episodes finished": f"{self.mean('finished'):.1f}",
            "of the money spent, in finished episodes (by seed)": in_finished,
            "of the cap, spent": f"{self.mean('spent') / self.mean('cap'):.1%}",
            "of the money spent, lost": f"{self.mean('lost') / self.mean('spent'):.1%}",
            "wall s": f"{self.mean('wall_s'):.0f}",
        }


def rows(
    server: Spawned,
    worth: float,
    caps: Sequence[int],
    seeds: Iterable[int],
    ways: dict[str, dict[str, Any]],
) -> list[Row]:
    """Every cap, every way, every seed."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {
            (cap, way): [pool.submit(play, server, seed, cap * worth, **search) for seed in seeds]
            for cap in caps
            for way, search in ways.items()
        }
        done = []
        for (cap, way), futures in found.items():
            row = Row(cap, way, tuple(future.result() for future in futures))
            print(row.cells(), file=sys.stderr)
            done.append(row)
    return done


def measure(caps: Sequence[int], seeds: Sequence[int]) -> dict[str, Any]:
    """All tables' figures."""
    with spawn(OPTIONS) as server:
        play(server, 0, None, episodes=2)  # imports and first connections
        pairs = [
            [play(server, seed, cap, episodes=FREE) for cap in (None, AMPLE_USD)] for seed in seeds
        ]
        free, ample = zip(*pairs, strict=True)
        worth = fmean(run.spent / run.finished for run in free)
        clean = rows(server, worth, caps, seeds, WAYS)
    with spawn(Options(**asdict(OPTIONS) | FAULTS)) as server:
        faulty = rows(
            server, worth, caps, seeds, {f"{way}, 30 % faults": how for way, how in WAYS.items()}
        )
    walls = {name: fmean(r.wall_s for r in runs) for name, runs in (("no", free), ("ample", ample))}
    return {"worth": worth, "walls": walls, "rows": [*clean, *faulty], "seeds": len(seeds)}


def section(found: dict[str, Any]) -> str:
    """The page's text."""
    shares = [row.share for row in found["rows"] if row.way == "as many as fit"]
    verdict = "met" if min(shares) >= GOAL else "missed"
    faults = ", ".join(f"{name} {share:g}" for name, share in FAULTS.items())
    return (
        f"code_review with its judge at default settings, prices of {MODEL}, {CONCURRENCY} calls "
        f"at once, up to {EPISODES} episodes; {OPTIONS.latency_s * 1000:.0f} ms per call and "
        f"{OPTIONS.output_tokens} tokens per answer (lognormal: these medians, sigma "
        f"{OPTIONS.sigma} and {OPTIONS.output_sigma}), {found['seeds']} seeds. An episode costs "
        f"${found['worth']:.4f} on average.\n\n"
        f"{columns([row.cells() for row in found['rows']], figures=False)}\n\n"
        f"- Goal, at least {GOAL:.0%} of the money in finished episodes without faults: "
        f"{min(shares):.1%} at the least, {verdict}.\n"
        f"- {FREE} episodes took {found['walls']['no']:.1f} s without a cap and "
        f"{found['walls']['ample']:.1f} s under one of ${AMPLE_USD:.0f}.\n"
        "- Lost is what was set aside, at the worst case, for calls that failed and may have been "
        f"billed. Faults, as shares of all calls: {faults}.\n"
        f"- Walls in the table are of {AT_ONCE} runs side by side."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--caps", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    os.environ.setdefault("ANTHROPIC_API_KEY", "none-needed-here")
    found = measure(args.caps, range(args.seeds))
    text = section(found)
    print(json.dumps(found, default=asdict) if args.json else text)
    if args.write:
        page.write("caps", COMMAND, text)


if __name__ == "__main__":
    main()
