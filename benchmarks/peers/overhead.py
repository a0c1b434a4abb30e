"""Wall clock over ideal of Orchestry, DSPy's Evaluate and gepa.optimize, at 100 ms per call.

Each contestant makes its calls to one loopback server process, from a process of its own in an
environment of its own, with its cache off, after a small run that is not counted (imports and
first connections). Ideal is max(critical path, drawn latencies / concurrency), where the critical
path is the least number of calls that must follow one another, times the mean drawn latency.
GEPA finishes one batch before it asks for the next, so its path counts a batch as ceil(size /
concurrency) calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks import load, page
from benchmarks.peers.contest import ANSWER
from benchmarks.server.bill import Options
from benchmarks.server.loopback import ROOT, Spawned, spawn
from benchmarks.stats import columns, ranged
from orchestry.core.distribution import NAME

PEERS = ROOT / "benchmarks" / "peers"
CONTESTANTS = ("orchestry", "dspy", "gepa")
LATENCY_S = 0.1
SIGMAS = {"constant": 0.0, "lognormal": 0.5}
GOALS = {"constant": 1.10, "lognormal": 1.25}
GOAL_AT = 32


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    contestant: str
    concurrency: int
    latency: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One repeat of a row: seconds, but for `calls`, `chain` and `others`.

    `others` is the share of the machine that processes outside the benchmark took meanwhile.
    """

    calls: int
    chain: int
    drawn_s: float
    wall_s: float
    span_s: float
    concurrency: int
    others: float = 0.0

    @property
    def work_s(self) -> float:
        """The least time the calls take when all places are always taken."""
        return self.drawn_s / self.concurrency

    @property
    def critical_s(self) -> float:
        return self.chain * self.drawn_s / self.calls

    @property
    def ideal_s(self) -> float:
        return max(self.critical_s, self.work_s)

    @property
    def ratio(self) -> float:
        return self.wall_s / self.ideal_s


def python_of(contestant: str) -> str:
    """The interpreter a contestant runs in; peers' environments are made and kept up here."""
    if contestant == "orchestry":
        return sys.executable
    wanted = PEERS / f"requirements-{contestant}.txt"
    folder = ROOT / ".envs" / contestant
    python, made = folder / "bin" / "python", folder / "requirements.txt"
    if not made.exists() or made.read_text() != wanted.read_text():
        print(f"making {folder.relative_to(ROOT)}", file=sys.stderr)
        make = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)]
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        for command in (make, [*pip, "install", "--quiet", "--no-compile", "-r", str(wanted)]):
            subprocess.run(command, check=True)
        made.write_text(wanted.read_text())
    return str(python)


def measure(server: Spawned, setting: Setting, calls: int) -> Measured:
    """Runs one contestant once; raises RuntimeError with its last words where it fails."""
    command = [python_of(setting.contestant), "-m", f"benchmarks.peers.with_{setting.contestant}"]
    before = load.read(server.pid)
    done = subprocess.run(
        [*command, server.url, str(calls), str(setting.concurrency)],
        cwd=ROOT,
        env=os.environ | {"ANTHROPIC_API_KEY": "test", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{setting.contestant} failed: {done.stderr.strip()[-2000:]}")
    said, bill = json.loads(done.stdout.splitlines()[-1]), server.bill()
    return Measured(
        calls=bill["requests"],
        chain=said["chain"],
        drawn_s=bill["latency_total_s"],
        wall_s=said["wall_s"],
        span_s=bill["span_s"],
        concurrency=setting.concurrency,
        others=load.others(before, load.read(server.pid)),
    )


def run(
    contestants: Sequence[str],
    concurrencies: Sequence[int],
    repeats: int,
    calls_a_place: int,
    patience_s: float,
) -> dict[Setting, list[Measured]]:
    """All settings, `repeats` times, contestants taking turns so that drift meets them alike.

    Each waits up to `patience_s` for a machine that nobody else uses.
    """
    rows: dict[Setting, list[Measured]] = {}
    for latency, sigma in SIGMAS.items():
        with spawn(Options(latency_s=LATENCY_S, sigma=sigma, answer=ANSWER)) as server:
            for _ in range(repeats):
                for setting in _settings(contestants, concurrencies, latency):
                    load.wait(patience_s)
                    measured = measure(server, setting, calls_a_place * setting.concurrency)
                    rows.setdefault(setting, []).append(measured)
                    print(f"{setting}: {measured.ratio:.2f}, {measured}", file=sys.stderr)
    return rows


def _settings(
    contestants: Sequence[str], concurrencies: Sequence[int], latency: str
) -> Iterator[Setting]:
    for concurrency in concurrencies:
        for contestant in contestants:
            yield Setting(contestant, concurrency, latency)


def timings(rows: dict[Setting, list[Measured]]) -> str:
    """The page's table: medians over the repeats, and the range of the ratio."""
    return columns([_cells(*item) for item in rows.items()], figures=False)


def _cells(setting: Setting, repeats: Sequence[Measured]) -> dict[str, str]:
    def middle(name: str) -> float:
        return statistics.median(getattr(one, name) for one in repeats)

    return {
        "contestant": setting.contestant,
        "at once": str(setting.concurrency),
        "latency": setting.latency,
        "calls": f"{middle('calls'):.0f}",
        "critical path s": f"{middle('critical_s'):.2f}",
        "work s": f"{middle('work_s'):.2f}",
        "ideal s": f"{middle('ideal_s'):.2f}",
        "wall s": f"{middle('wall_s'):.2f}",
        "server's span s": f"{middle('span_s'):.2f}",
        "wall / ideal (range)": ranged([one.ratio for one in repeats], ".2f"),
        "wall / work": f"{middle('wall_s') / middle('work_s'):.2f}",
    }


def verdicts(rows: dict[Setting, list[Measured]]) -> str:
    """One line a goal: met or missed, by the median."""
    lines = []
    for latency, goal in GOALS.items():
        repeats = rows.get(Setting("orchestry", GOAL_AT, latency))
        if repeats:
            ratio = statistics.median(one.ratio for one in repeats)
            word = "met" if ratio <= goal else "missed"
            lines.append(f"- At {GOAL_AT} at once, {latency}: {ratio:.2f}, goal {goal}: {word}.")
    return "\n".join(lines)


def _disturbance(rows: dict[Setting, list[Measured]]) -> str:
    """How quiet the machine was: the reader's reason to trust the figures, or not to."""
    shares = [one.others for repeats in rows.values() for one in repeats]
    disturbed = sum(share > load.QUIET for share in shares)
    return (
        f"- Processes outside the benchmark took {statistics.median(shares):.0%} of the machine "
        f"(most {max(shares):.0%}); {disturbed} of {len(shares)} timings saw more than "
        f"{load.QUIET:.0%}."
    )


def report(rows: dict[Setting, list[Measured]]) -> str:
    """The section's text."""
    repeats = len(next(iter(rows.values())))
    pins = ", ".join(
        line
        for name in ("dspy", "gepa")
        for line in Path(ROOT, "benchmarks", "peers", f"requirements-{name}.txt")
        .read_text()
        .split()[:1]
    )
    return (
        f"{LATENCY_S * 1000:.0f} ms per call (lognormal: that median, sigma "
        f"{SIGMAS['lognormal']}), {repeats} repeats, medians. Orchestry {version(NAME)} "
        f"plays its beam search (k=4, W=2, three agents), DSPy's Evaluate a program of three "
        f"predictors in order, gepa.optimize its own algorithm through its default adapter; "
        f"{pins}; caches off. Wall clock is the run inside its process after a small run for "
        f"imports and first connections; the server's span is from its first request to its last "
        f"answer. Work is drawn latencies / places, ideal the larger of it and the critical path. "
        f"GEPA's critical path is long because it waits for each batch and each reflection: "
        f"ceil(batch / places) mean latencies each.\n\n"
        f"{timings(rows)}\n\n{verdicts(rows)}\n{_disturbance(rows)}"
    )


def main(argv: list[str] | None = None) -> None:
    """Measures, and writes the section where nothing was left out."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.overhead", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", choices=CONTESTANTS, action="append", help="print, don't write")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--calls-a-place", type=int, default=80)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for quiet")
    parser.add_argument(
        "--realtime", action="store_true", help="go before all other processes (as root)"
    )
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    if args.realtime:  # inherited by the server and by all contestants alike
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    contestants = args.only or CONTESTANTS
    rows = run(contestants, args.concurrency, args.repeats, args.calls_a_place, args.patience)
    print(report(rows))
    if not args.only:
        page.write(
            "overhead", " ".join(["python -m benchmarks.peers.overhead", *given]), report(rows)
        )


if __name__ == "__main__":
    main()
