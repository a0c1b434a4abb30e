"""Faults by name: what a run finishes under each, what is billed, and how it ends.

Each run is a process of its own, `orchestry run`, with the provider `anthropic` or `openai` on a
loopback server in another process, which makes the fault and keeps its own bill. Then all faults
together: 200 episodes of which 30 % of the requests meet one, drawn evenly, from several seeds.
Pauses between attempts are shortened to a tenth, except where a row says otherwise.

    python -m benchmarks.guarantees.faults [--seeds N] [--workers N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import FAULTS, ROOT, Spawned, spawn
from benchmarks.stats import columns

COMMAND = "python -m benchmarks.guarantees.faults --write"
VENDORS = ("anthropic", "openai")
MODEL = "claude-sonnet-5"
PRICE = {"input_usd": 2.0, "output_usd": 10.0}
SHORT = ("retry.base_s=0.05", "retry.max_s=2")
EPISODES, MANY = 20, 200
LONGEST_S = 600.0
"""Longest life of one process."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run to be made."""

    name: str
    options: Options
    vendor: str = "anthropic"
    episodes: int = EPISODES
    sets: tuple[str, ...] = SHORT
    budget: float = 5.0
    ends: tuple[int, ...] = (0,)
    """Exit codes that are right, of the run and then of each resume."""


@dataclass(frozen=True, slots=True)
class Found:
    """What it came to. Dollars by the server's own bill and by the ledger."""

    name: str
    vendor: str
    codes: tuple[int, ...]
    asked: int
    finished: int
    failed: int
    failed_calls: int
    requests: int
    faults: int
    billed: float
    spent: float
    lost: float
    seconds: float
    right: bool
    """Exit codes as they should be, and the bill within what the ledger says, that within the
    cap."""
    told: str = ""
    """The end of standard error, where it is not right."""


def options(**how: Any) -> Options:
    """A server that answers within 20 ms."""
    return Options(**{"latency_s": 0.02, **PRICE, **how})


def cases() -> list[Case]:
    """The faults by name, each at both vendors."""
    share = 0.05
    one = [
        Case("none", options()),
        Case("200 that breaks off in its JSON, 5 %", options(malformed_billed=share)),
        Case("200 with a page of HTML, 5 %", options(html=share)),
        Case("200 with an empty body, 5 %", options(empty_billed=share)),
        Case("400, 5 %", options(bad_request=share)),
        Case("404, 5 %", options(not_found=share)),
        Case("429 with retry-after, 30 %", options(rate_limited=0.3, retry_after="0,0.1")),
        Case("529 without retry-after, 30 %", options(overloaded=0.3)),
        Case("429, billed, 5 %", options(limited_billed=share)),
        Case("503, billed, 5 %", options(busy_billed=share)),
        Case("200 with an error inside, billed, 5 %", options(failure_in_200=share)),
        Case("usage without counts, 5 %", options(uncounted=share)),
        Case("thoughts billed beside the answer, 30 %", options(thinking=0.3)),
        Case("answers billed at five times max_tokens", options(overbilled=16), ends=(3,)),
        Case(
            "429 with retry-after: 7200, patience 2 s",
            options(rate_limited=1.0, retry_after="7200"),
            sets=(*SHORT, "retry.patience_s=2"),
            ends=(4,),
        ),
        Case("500, unbilled, 5 %", options(error=share)),
        Case("500, billed, 5 %", options(error_billed=share)),
        Case("broken off in mid-answer, billed, 5 %", options(drop_billed=share)),
        Case(
            "never answered, billed, 2 %",
            options(hang_billed=0.02),
            sets=(*SHORT, "provider.timeout_s=1"),
        ),
        Case("one prompt always 400", options(poison="Task 7:")),
        Case("connections refused for 1 s", options(away_at=30, away_s=1.0)),
        Case(
            "529 for 7 s, default pauses", options(away_at=30, away_s=7, away_status=529), sets=()
        ),
        Case(
            "529 for 19 s, default pauses", options(away_at=30, away_s=19, away_status=529), sets=()
        ),
        Case(
            "away for 8 s, patience 2 s, then a resume inside it",
            options(away_at=30, away_s=8.0),
            sets=(*SHORT, "retry.patience_s=2"),
            ends=(4, 0),
        ),
    ]
    return [replace(case, vendor=vendor) for case in one for vendor in VENDORS]


def mixed(seeds: int) -> list[Case]:
    """All faults together, 30 % of the requests; every third run under a cap that stops it."""
    share = 0.3 / len(FAULTS)
    shares: dict[str, Any] = dict.fromkeys(FAULTS, share)
    sets = (*SHORT, "provider.timeout_s=1")
    return [
        Case(
            f"30 % of all of them, seed {seed}",
            options(seed=seed, **shares),
            vendor=VENDORS[seed % 2],
            episodes=MANY,
            sets=(*sets, f"seed={seed}"),
            budget=0.5 if seed % 3 == 2 else 5.0,
            ends=(3, 0) if seed % 3 == 2 else (0,),
        )
        for seed in range(seeds)
    ]


def play(case: Case) -> Found:
    """The run, and its resumes, each as a process of its own."""
    with tempfile.TemporaryDirectory() as folder, spawn(case.options) as server:
        run, began = Path(folder) / "run", time.monotonic()
        codes, told = list[int](), ""
        for number in range(len(case.ends)):
            args = _start(case, run) if not number else _resume(case, run)
            done = subprocess.run(
                [sys.executable, "-m", "orchestry", *args, "--json"],
                env=_environ(case, server, Path(folder)),
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
            )
            codes.append(done.returncode)
            told += done.stderr
        return _found(case, run, server.bill(), codes, time.monotonic() - began, told)


def _start(case: Case, run: Path) -> list[str]:
    prices = [f"prices.{MODEL}.{k}={PRICE[f'{k}_usd']}" for k in ("input", "output")]
    sets = ["sampling.max_tokens=64", "judge.enabled=false", "cache.enabled=false"]
    sets += ["search.k_samples=2", "search.beam_width=1", "search.concurrency=8", *prices]
    return [
        *("run", "--task", "relay", "--task-path", str(ROOT / "benchmarks" / "server" / "tasks")),
        *("--provider", case.vendor, "--model", MODEL, "--episodes", str(case.episodes)),
        *("--budget", str(case.budget), "--run-dir", str(run)),
        *(part for item in (*sets, *case.sets) for part in ("--set", item)),
    ]


def _resume(case: Case, run: Path) -> list[str]:
    return ["resume", str(run), "--budget", "5", "--patience", "60"]


def _environ(case: Case, server: Spawned, folder: Path) -> dict[str, str]:
    return os.environ | {
        "ANTHROPIC_API_KEY": "none-needed-here",
        "OPENAI_API_KEY": "none-needed-here",
        "ANTHROPIC_BASE_URL": server.url,
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def _found(
    case: Case, run: Path, bill: dict[str, Any], codes: Sequence[int], seconds: float, told: str
) -> Found:
    summary = json.loads((run / "summary.json").read_bytes())
    cap = 5.0 if len(codes) > 1 else case.budget
    within = bill["usd"] <= summary["cost_usd"] + 1e-9 and summary["cost_usd"] <= cap + 1e-9
    right = tuple(codes) == case.ends and within
    return Found(
        name=case.name,
        vendor=case.vendor,
        codes=tuple(codes),
        asked=case.episodes,
        finished=summary["episodes"] - summary["failed_episodes"],
        failed=summary["failed_episodes"],
        failed_calls=summary["failed_calls"],
        requests=bill["requests"],
        faults=sum(bill["faults"].values()),
        billed=bill["usd"],
        spent=summary["cost_usd"],
        lost=summary["lost_usd"],
        seconds=seconds,
        right=right,
        told="" if right else told[-2000:],
    )


def _cells(one: Found) -> dict[str, str]:
    return {
        "fault": one.name,
        "provider": one.vendor,
        "episodes finished": f"{one.finished} of {one.asked}",
        "failed": str(one.failed),
        "calls that failed for good": str(one.failed_calls),
        "requests": f"{one.requests:,}",
        "faults met": f"{one.faults:,}",
        "billed, USD": f"{one.billed:.4f}",
        "charged": f"{one.spent:.4f}",
        "of it lost": f"{one.lost:.4f}",
        "exit codes": ", then ".join(map(str, one.codes)),
        "seconds": f"{one.seconds:.0f}",
    }


def section(found: Sequence[Found]) -> str:
    right = sum(one.right for one in found)
    many = [one for one in found if one.asked == MANY]
    good = sum(set(one.codes) <= {0, 3} for one in many)
    return "\n".join(
        [
            f"**{right} of {len(found)}** runs ended with the exit codes that they should, the "
            "server's own bill within what the ledger charged, and that within the cap. Of "
            f"{MANY} episodes with 30 % of the requests drawn from all faults, **{good} of "
            f"{len(many)}** runs ended with 0 or 3; where a cap of 0.50 USD stopped one, its "
            "resume with a larger one finished it.",
            "",
            columns([*map(_cells, found)], figures=False),
            "",
            "An episode of `relay` is six calls of three agents. `billed` is the server's own "
            "count, `charged` what the ledger says was spent; `lost` is the part of that for calls "
            "that may have been billed and were never answered, at their worst case.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="runs with all faults together")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    asked = [case for case in (*cases(), *mixed(args.seeds)) if args.only in case.name]
    with ThreadPoolExecutor(args.workers) as pool:
        found = list(pool.map(play, asked))
    print(json.dumps([asdict(one) for one in found]) if args.json else section(found))
    for one in found:
        if not one.right:
            print(f"{one.name}, {one.vendor}: {one.told}", file=sys.stderr)
    if args.write:
        page.write("faults", COMMAND, section(found))
    if not all(one.right for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
