"""Runs killed by kill -9 at random moments, then resumed, against one that nobody disturbed.

Each run is a process of its own, `orchestry run`, with the provider `anthropic` on a loopback
server in another process. The server answers every request by its body alone, and counts bodies
that it billed. An answer's text names its body, which ties the journal's calls to the server's
bill. Kills are spread over the life of the process: some while it starts, before there is a run to
resume; of those after that, half evenly over time and half evenly over the growth of the journal,
which is where calls are in flight.

    python -m benchmarks.guarantees.resume [--kills N] [--early N] [--seed S] [--workers N]
        [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

from benchmarks import page
from benchmarks.server.bill import Options
from benchmarks.server.loopback import ROOT, Spawned, spawn
from benchmarks.server.wire import filler
from orchestry.store import journal
from orchestry.store.journal import Answered, Lost, Reserved

COMMAND = "python -m benchmarks.guarantees.resume --write"
OPTIONS = Options(latency_s=0.03, input_usd=2.0, output_usd=10.0)
CAP_USD = 0.2
FILES = ("episodes.jsonl", "metrics.jsonl", "rewards.csv", "config.yaml")
TIMES = ("run_dir", "seconds")
DOUBLE = ("cost_usd", "lost_usd")
"""Fields of summary.json that calls billed twice may change."""
CLI = (sys.executable, "-m", "orchestry")
RUN = (
    *("run", "--provider", "anthropic", "--model", "claude-sonnet-5", "--json"),
    *(
        "--task",
        "relay",
        "--task-path",
        str(ROOT / "benchmarks" / "server" / "tasks"),
        "--episodes",
        "10",
    ),
    *("--budget", str(CAP_USD), "--set", "sampling.max_tokens=64"),
    *("--set", "search.concurrency=6", "--set", "search.episodes_in_flight=2"),
    *("--set", "judge.enabled=false"),
)
PATIENCE_S = 120.0
"""Longest life of one process."""
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Whole:
    """The undisturbed run: its files, and how long it took to start and from there to its end."""

    artefacts: dict[str, Any]
    start_s: float
    life_s: float
    journal_bytes: int
    calls: int


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: so long after the run began and its journal had so many bytes."""

    journal_bytes: float
    delay_s: float


@dataclass(slots=True)
class Outcome:
    """One run that was killed and resumed. `faults` says what was wrong, in words."""

    committed: int
    """Episodes that were whole at the kill."""
    answered: int
    open: int
    """Calls reserved at the kill and not ended."""
    billed_twice: int
    faults: list[str] = field(default_factory=list)


class Home:
    """One run's folder, with a cache of its own."""

    def __init__(self, folder: Path, server: Spawned) -> None:
        self.run = folder / "run"
        self._environ = os.environ | {
            "ANTHROPIC_API_KEY": "none-needed-here",
            "ANTHROPIC_BASE_URL": server.url,
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    @property
    def begun(self) -> bool:
        """Whether there is a run that can be resumed."""
        return (self.run / "journal.jsonl").exists() and (self.run / "config.yaml").exists()

    @property
    def journal_bytes(self) -> int:
        return (self.run / "journal.jsonl").stat().st_size

    def start(self) -> subprocess.Popen[str]:
        return self._spawn(*RUN, "--run-dir", str(self.run))

    def resume(self) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        process = self._spawn("resume", str(self.run), "--json")
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def _spawn(self, *args: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*CLI, *args], env=self._environ, stdout=pipe, stderr=pipe, text=True, cwd=ROOT
        )


def whole_run(server: Spawned, folder: Path) -> Whole:
    """The run that nobody disturbs."""
    server.reset()
    home = Home(folder, server)
    began = time.monotonic()
    process = home.start()
    _wait_for_run(home, process)
    started = time.monotonic()
    _, err = process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise RuntimeError(f"the undisturbed run failed: {err[-2000:]}")
    life_s = time.monotonic() - started
    return Whole(
        artefacts=artefacts(home.run),
        start_s=started - began,
        life_s=life_s,
        journal_bytes=home.journal_bytes,
        calls=server.bill()["requests"],
    )


def artefacts(run: Path) -> dict[str, Any]:
    """All of a run that must not depend on its kills."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    paid_once = summary["cost_usd"] - summary["lost_usd"]
    kept = {k: v for k, v in summary.items() if k not in (*TIMES, *DOUBLE)}
    files = {name: (run / name).read_text(encoding="utf-8") for name in FILES}
    return {"summary.json": kept | {"paid_once": round(paid_once, 9)}, **files}


def killed_early(server: Spawned, folder: Path, delay_s: float) -> list[str] | None:
    """A kill before there is a run: faults found, or None where the run had begun by then."""
    server.reset()
    home = Home(folder, server)
    process = home.start()
    time.sleep(delay_s)
    process.kill()
    process.communicate()
    if home.begun:
        return None
    code, _, err = home.resume()
    if code == 2 and "give the directory that `orchestry run` printed" in err:
        return [] if server.bill()["requests"] == 0 else ["a request was sent before the journal"]
    return [f"resume of no run ended with {code}: {err[-300:]}"]


def killed_late(server: Spawned, folder: Path, moment: Moment, whole: Whole) -> Outcome | None:
    """A kill of a run that had begun, and its resume; None where the run had ended."""
    server.reset()
    home = Home(folder, server)
    process = home.start()
    _wait_for_run(home, process)
    while home.journal_bytes < moment.journal_bytes and process.poll() is None:
        time.sleep(POLL_S)
    time.sleep(moment.delay_s)
    process.kill()
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        return None
    before = (home.run / "journal.jsonl").read_bytes()
    code, out, err = home.resume()
    if code:
        return Outcome(0, 0, 0, 0, [f"resume ended with {code}: {err[-1000:]}"])
    found = audit(home.run, before, json.loads(out), server.bill())
    now = artefacts(home.run)
    found.faults += [f"{name} differs" for name in now if now[name] != whole.artefacts[name]]
    return found


def audit(run: Path, before: bytes, said: dict[str, Any], bill: dict[str, Any]) -> Outcome:
    """What the journal at the kill, the finished run and the server's bill say of one another."""
    cut = before[: before.rfind(b"\n") + 1]
    then = [journal.decode(*line) for line in journal.checksums(cut.splitlines())]
    after = list(journal.read(run / "journal.jsonl"))
    answered = {event.key for event in then if isinstance(event, Answered)}
    ended = {e.call for e in then if not isinstance(e, Reserved) and hasattr(e, "call")}
    in_flight = {e.key for e in then if isinstance(e, Reserved) and e.call not in ended}
    key_of = {e.completion.text: e.key for e in after if isinstance(e, Answered)}
    times = {body: billed for body, (_, billed) in bill["by_body_hash"].items()}
    keys = {body: key_of.get(answer_text(body)) for body in times}
    twice = [keys[body] for body, count in times.items() if count > 1]
    found = Outcome(
        committed=sum(event.kind == "committed" for event in then),
        answered=len(answered),
        open=len(in_flight),
        billed_twice=len(twice),
    )
    checks = {
        "the journal at the kill is no beginning of the last one": (
            (run / "journal.jsonl").read_bytes().startswith(cut)
        ),
        "a billed request has no answer in the journal": None not in keys.values(),
        "a request was billed twice that was not in flight": set(twice) <= in_flight,
        "a request was billed three times": max(times.values()) <= 2,
        "an answer in the journal was asked again": not answered & set(twice),
        "other calls were charged as lost than those in flight": (
            sum(isinstance(event, Lost) for event in after) == len(in_flight)
        ),
        "the bill is above the ledger": bill["usd"] <= said["cost_usd"] + 1e-9,
        "the ledger is above the cap": said["cost_usd"] <= CAP_USD,
    }
    found.faults += [fault for fault, holds in checks.items() if not holds]
    return found


def answer_text(body_hash: str) -> str:
    """What the server answered to that body."""
    return OPTIONS.answer.replace("{text}", filler(body_hash, OPTIONS.output_tokens))


def _wait_for_run(home: Home, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not home.begun and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"no run began within {PATIENCE_S:g} s")
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's server, and the undisturbed run against it: a config names its server."""

    server: Spawned
    whole: Whole


class Bench:
    """Workers with a seat each, and the points of the kills."""

    def __init__(self, seats: Sequence[Seat], seed: int) -> None:
        self.whole = seats[0].whole
        self.redrawn = 0
        self._rng = random.Random(seed)
        self._seats: Queue[Seat] = Queue()
        for seat in seats:
            self._seats.put(seat)
        self._pool = ThreadPoolExecutor(len(seats))

    @contextmanager
    def _seat(self) -> Iterator[tuple[Seat, Path]]:
        """A free seat, and a folder for one run."""
        seat = self._seats.get()
        try:
            with tempfile.TemporaryDirectory() as folder:
                yield seat, Path(folder)
        finally:
            self._seats.put(seat)

    def early(self, count: int) -> list[list[str]]:
        """Faults of `count` kills before there was a run."""

        def once(delay_s: float) -> list[str]:
            with self._seat() as (seat, folder):
                faults = killed_early(seat.server, folder, delay_s)
            return once(delay_s * 0.8) if faults is None else faults

        return list(self._pool.map(once, self._points(count, self.whole.start_s)))

    def late(self, count: int) -> list[Outcome]:
        """`count` kills of a run that had begun and had not ended."""

        def once(moment: Moment) -> Outcome:
            with self._seat() as (seat, folder):
                outcome = killed_late(seat.server, folder, moment, seat.whole)
            if outcome is None:  # it was faster than the undisturbed run: another point
                self.redrawn += 1
                share = self._rng.random()
                return once(Moment(moment.journal_bytes * share, moment.delay_s * share))
            print(f"{moment}: {outcome}", file=sys.stderr)
            return outcome

        over_time = [Moment(0, point) for point in self._points(count // 2, self.whole.life_s)]
        sizes = self._points(count - count // 2, self.whole.journal_bytes)
        over_size = [Moment(size, self._rng.uniform(0.0, OPTIONS.latency_s)) for size in sizes]
        return list(self._pool.map(once, [*over_time, *over_size]))

    def _points(self, count: int, end_s: float) -> list[float]:
        """One in each of `count` equal parts of the time, in random order."""
        points = [(i + self._rng.random()) / count * end_s for i in range(count)]
        self._rng.shuffle(points)
        return points


def play(kills: int, early: int, seed: int, workers: int) -> dict[str, Any]:
    """The whole benchmark's figures."""
    began = time.perf_counter()
    with ExitStack() as stack:
        servers = [stack.enter_context(spawn(OPTIONS)) for _ in range(workers)]
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in servers]
        wholes = map(whole_run, servers, folders)
        bench = Bench([Seat(*pair) for pair in zip(servers, wholes, strict=True)], seed)
        too_early = bench.early(early)
        outcomes = bench.late(kills)
    faults = Counter(f for one in outcomes for f in one.faults)
    faults += Counter(f for one in too_early for f in one)
    return {
        "kills": len(outcomes),
        "identical_and_paid_once": sum(not one.faults for one in outcomes),
        "kills_before_a_run": len(too_early),
        "kills_before_a_run_clean": sum(not one for one in too_early),
        "faults": dict(faults),
        "calls": bench.whole.calls,
        "start_s": round(bench.whole.start_s, 2),
        "life_s": round(bench.whole.life_s, 2),
        "redrawn": bench.redrawn,
        "answered_at_kill": [f(one.answered for one in outcomes) for f in (min, max)],
        "episodes_at_kill": [f(one.committed for one in outcomes) for f in (min, max)],
        "in_flight_at_kill": sum(one.open for one in outcomes),
        "kills_with_calls_in_flight": sum(one.open > 0 for one in outcomes),
        "billed_twice": sum(one.billed_twice for one in outcomes),
        "seconds": round(time.perf_counter() - began, 1),
    }


def section(found: dict[str, Any]) -> str:
    answers, episodes = found["answered_at_kill"], found["episodes_at_kill"]
    faults = ", ".join(f"{count} times {what}" for what, count in found["faults"].items())
    return (
        f"`orchestry run` with {found['calls']} calls of 30 ms, killed by kill -9 at "
        f"{found['kills']} moments (half of them spread evenly over its time, half over the growth "
        f"of its journal) and resumed: in "
        f"**{found['identical_and_paid_once']} of {found['kills']}** the final episodes.jsonl, "
        "metrics.jsonl, rewards.csv and config.yaml equal those of an undisturbed run byte for "
        "byte, summary.json differs in nothing but run_dir, seconds and what was charged for "
        "calls in flight, no answer that the journal held was asked again, and bill <= ledger <= "
        f"cap. Faults: {faults or 'none'}.\n\n"
        f"At the kill the journal held {answers[0]} to {answers[1]} answers and {episodes[0]} to "
        f"{episodes[1]} whole episodes; {found['kills_with_calls_in_flight']} kills met calls in "
        f"flight, {found['in_flight_at_kill']} calls together. By the server's own count "
        f"{found['billed_twice']} requests were billed twice, all of them among those "
        f"{found['in_flight_at_kill']}. A run takes {found['start_s']:.1f} s to start and "
        f"{found['life_s']:.1f} s from its first line to its end; {found['redrawn']} kills came "
        f"after the end and were drawn again. {found['kills_before_a_run']} more kills hit the "
        "start, before there was a run: nothing had been sent, and `orchestry resume` says that "
        f"there is no run ({found['kills_before_a_run_clean']} of {found['kills_before_a_run']})."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--early", type=int, default=10, help="kills before there is a run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="runs side by side")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    found = play(args.kills, args.early, args.seed, args.workers)
    print(json.dumps(found) if args.json else section(found))
    if args.write:
        page.write("resume", COMMAND, section(found))
    if found["faults"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
