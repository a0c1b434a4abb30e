"""A run that waits for its sandbox, on one machine and on two: how much sooner it ends.

    python -m benchmarks.guarantees.executors [--rounds N] [--write]

A machine is a core of this one. Alone: the run and its sandbox have core 0. Ray: a real cluster,
whose head and run are on core 0, and a second node on core 1. The provider is `fake`, and each
answer is scored by a program that computes for about 100 ms (benchmarks/server/tasks/scored). The
last row loses the second node in the middle (SIGKILL of all its processes).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.stats import columns, ranged
from orchestry.store.run import load_run

TASKS = page.ROOT / "benchmarks" / "server" / "tasks"
EPISODES, SAMPLES = 10, 24


def run(folder: Path, on: str) -> subprocess.Popen[bytes]:
    """The run as a user starts it, on core 0."""
    sets = ["judge.enabled=false", "behaviors.enabled=false", "search.concurrency=48"]
    command = [sys.executable, "-m", "orchestry", "run", "--task", "scored", "--provider", "fake"]
    command += ["--task-path", str(TASKS), "--episodes", str(EPISODES), "--on", on]
    command += ["--k-samples", str(SAMPLES), "--run-dir", str(folder)]
    for item in sets:
        command += ["--set", item]
    os.sched_setaffinity(0, {0})
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ended(folder: Path, process: subprocess.Popen[bytes]) -> tuple[float, list[float]]:
    """Seconds from the first episode to the end, and the rewards. Raises RuntimeError if it
    failed."""
    if process.wait() != 0:
        raise RuntimeError(f"{folder.name} ended with exit code {process.returncode}")
    found = load_run(folder)
    return found.summary.seconds, [one.reward for one in found.episodes]


class Machines:
    """A Ray cluster of two nodes with a core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.sched_setaffinity(0, {0})
        head = {"num_cpus": 1, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        os.environ["RAY_ADDRESS"] = self._cluster.address
        self.second = self._join()

    def _join(self) -> Any:
        os.sched_setaffinity(0, {1})
        node = self._cluster.add_node(num_cpus=1)
        os.sched_setaffinity(0, {0})
        self._cluster.wait_for_nodes()
        return node

    def lose(self) -> None:
        """Kills the second node."""
        self._cluster.remove_node(self.second, allow_graceful=False)

    def close(self) -> None:
        """Ends the cluster."""
        self._cluster.shutdown()


def report(rounds: int, folder: Path) -> str:
    """The section's text."""
    times: dict[str, list[float]] = {"local": [], "ray": []}
    machines, rewards = Machines(), list[list[float]]()
    try:
        for number in range(rounds):
            for on, found in times.items():
                place = folder / f"{on}-{number}"
                seconds, own = ended(place, run(place, on))
                found.append(seconds)
                rewards.append(own)
                print(f"{on}: {seconds:.1f} s", file=sys.stderr)
        process = run(folder / "lost", "ray")
        while not (folder / "lost" / "episodes.jsonl").exists():
            time.sleep(0.1)
        machines.lose()
        lost, own = ended(folder / "lost", process)
        rewards.append(own)
    finally:
        machines.close()
    if any(one != rewards[0] for one in rewards):
        raise RuntimeError("the rewards differ")
    programs = EPISODES * SAMPLES
    ratios = [alone / both for alone, both in zip(*times.values(), strict=True)]
    rows = [
        {"where": "one machine, `--on local`", "s": ranged(times["local"], ".1f")},
        {"where": "two machines, `--on ray`", "s": ranged(times["ray"], ".1f")},
        {"where": "the same, the second lost in the middle", "s": f"{lost:.1f}"},
    ]
    return (
        f"{programs} answers, each scored by a program of about 100 ms; a machine is one core. Two "
        f"machines are {ranged(ratios, '.2f')} times as fast (median and range of {rounds} "
        "rounds). The rewards are the same in all runs, also in the one that lost a machine.\n\n"
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
    with tempfile.TemporaryDirectory(prefix="executors-") as name:
        text = report(args.rounds, Path(name))
    print(text)
    if args.write:
        command = f"python -m benchmarks.guarantees.executors --rounds {args.rounds} --write"
        page.write("executors", command, text)


if __name__ == "__main__":
    main()
