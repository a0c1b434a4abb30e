"""`orchestry watch`: what it costs the run and the machine, and how smooth its page is.

    python -m benchmarks.guarantees.watched [--pairs N] [--write]

A run of the fake provider is played with and without a page that watches it, in turn, and its CPU
time is compared. Then a page of 300 episodes in headless Chromium gets one more episode per second;
its longest task, first paint and heap are the browser's own figures. Needs Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import page
from benchmarks.stats import columns, ranged
from orchestry.report.serve import Watched, serving
from tests.report.browser import Tab, browser

COMMAND = "python -m benchmarks.guarantees.watched --write"
ORCHESTRY = (sys.executable, "-m", "orchestry")
SETS = ("provider.fake.latency_s=0.5", "cache.enabled=false")
PLAYED = ("--provider", "fake", *(word for item in SETS for word in ("--set", item)))
EPISODES, SHOWN, BEFORE = 60, 300, 240
"""Of the watched run; of the page in the end, and when it is opened."""
GOALS = {"run": 0.01, "watcher": 0.05, "task_ms": 50, "paint_ms": 1000}


class Cost(NamedTuple):
    """CPU seconds of a run and of who watched it, and the run's wall seconds."""

    run: float
    watcher: float
    wall: float


def on(core: int) -> list[str]:
    """Our command line on one core: the run and who watches it each keep their cache."""
    return ["taskset", "-c", str(core), *ORCHESTRY]


def played(place: Path, episodes: int, watch: bool = False) -> Cost:
    """A run, and who watches it."""
    command = [*on(0), "run", *PLAYED, "--episodes", str(episodes), "--run-dir", str(place)]
    began, found = time.monotonic(), 0.0
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (place / "episodes.jsonl").exists():
        time.sleep(0.01)
    with watcher(place) if watch else nullcontext() as process:
        before = cpu(process.pid) if process else 0.0
        _, status, used = os.wait4(run.pid, 0)
        found = cpu(process.pid) - before if process else 0.0
    run.returncode = os.waitstatus_to_exitcode(status)
    assert not run.returncode
    return Cost(used.ru_utime + used.ru_stime, found, time.monotonic() - began)


@contextmanager
def watcher(place: Path) -> Iterator[Any]:
    """`orchestry watch` in a process of its own, with one reader, which discards the news."""
    command = [*on(1), "watch", str(place)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    address = process.stdout.readline().strip().replace("/?", "/news?")
    curl = ["taskset", "-c", "1", "curl", "-sN", address]
    reader = subprocess.Popen(curl, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        reader.terminate()
        reader.wait()
        process.terminate()
        process.wait()


def cpu(process: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def pair(folder: Path, first: bool) -> tuple[Cost, Cost]:
    """A run alone and the same run watched; `first`: the watched one is played first."""
    found = {watch: played(folder / str(watch), EPISODES, watch) for watch in (first, not first)}
    return found[False], found[True]


TASKS = """(() => {
  window.tasks = [];
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: 'longtask' });
  const hearNow = hear;
  window.updates = [];
  hear = (news) => {
    const began = performance.now();
    hearNow(news);
    updates.push(performance.now() - began);
  };
})()"""
"""From now on: durations of tasks over 50 ms, and of the page's own work per update."""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def smooth(tab: Tab, folder: Path) -> dict[str, float]:
    """Figures of a page that grows from BEFORE to SHOWN episodes."""
    whole, place = folder / "whole", folder / "growing"
    played(whole, SHOWN)
    shutil.copytree(whole, place)
    lines = (whole / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (place / "episodes.jsonl").write_bytes(b"".join(lines[:BEFORE]))
    with serving(Watched([place])) as address:
        tab.open(address)
        time.sleep(2)
        paint = tab.eval(PAINT)
        tab.eval(TASKS)
        heap = _heap(tab)
        for line in lines[BEFORE:]:
            with (place / "episodes.jsonl").open("ab") as file:
                file.write(line)
            time.sleep(1.0)
        time.sleep(2)
        assert tab.eval("RUNS[0].rows.length") == SHOWN
        return {
            "paint_ms": paint,
            "task_ms": max(tab.eval("tasks"), default=0.0),
            "update_ms": max(tab.eval("updates")),
            "updates": tab.eval("updates.length"),
            "heap_before": heap,
            "heap_after": _heap(tab),
        }


def _heap(tab: Tab) -> float:
    """MiB, after a collection."""
    tab.call("HeapProfiler.collectGarbage")
    return float(tab.eval("performance.memory.usedJSHeapSize")) / 2**20


def report(pairs: Sequence[tuple[Cost, Cost]], found: dict[str, float]) -> str:
    """The section."""
    more = [watched.run / alone.run - 1 for alone, watched in pairs]
    shares = [watched.watcher / watched.wall for _, watched in pairs]
    verdict = {True: "reached", False: "missed"}
    longest = max(found["task_ms"], found["update_ms"])
    rows = [
        {
            "figure": "CPU time of a watched run, more than alone",
            "found": ranged(more, "+.1%"),
            "goal": f"< 1 %: {verdict[median(more) < GOALS['run']]}",
        },
        {
            "figure": "CPU of the watcher, share of a core",
            "found": ranged(shares, ".1%"),
            "goal": f"<= 5 %: {verdict[median(shares) <= GOALS['watcher']]}",
        },
        {
            "figure": "first paint of the page",
            "found": f"{found['paint_ms']:.0f} ms",
            "goal": f"< 1 s: {verdict[found['paint_ms'] < GOALS['paint_ms']]}",
        },
        {
            "figure": f"longest task in {found['updates']:.0f} updates",
            "found": "none over 50 ms" if longest <= 50 else f"{longest:.0f} ms",
            "goal": f"<= 50 ms: {verdict[longest <= GOALS['task_ms']]}",
        },
        {
            "figure": "longest of the page's own work per update",
            "found": f"{found['update_ms']:.0f} ms",
            "goal": "",
        },
        {
            "figure": f"heap of the page, at {BEFORE} and at {SHOWN} episodes",
            "found": f"{found['heap_before']:.1f} and {found['heap_after']:.1f} MiB",
            "goal": "",
        },
    ]
    calls = f"{EPISODES} episodes of code_review, fake answers in 0.5 s, 32 calls in flight"
    return (
        f"{len(pairs)} pairs, medians and ranges: {calls}; CPU times, the run on one core and who "
        "watches on the other. The range says what these figures can tell. The page: headless "
        f"Chromium, 1,400 pixels wide, {SHOWN} episodes "
        "at the end, one more per second, the newest opened.\n\n"
        f"{columns(rows, figures=False)}"
    )


def main() -> None:
    """Plays, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    pairs = []
    for number in range(args.pairs):
        with tempfile.TemporaryDirectory() as name:
            pairs.append(pair(Path(name), first=bool(number % 2)))
            print(pairs[-1], file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        browser(Path(name) / "profile", "--enable-precise-memory-info") as tab,
    ):
        size: dict[str, Any] = {"width": 1400, "height": 900, "deviceScaleFactor": 1}
        tab.open("about:blank")
        tab.call("Emulation.setDeviceMetricsOverride", **size, mobile=False)
        found = smooth(tab, Path(name))
    body = report(pairs, found)
    print(body)
    if args.write:
        page.write("watched", COMMAND, body)


if __name__ == "__main__":
    main()
