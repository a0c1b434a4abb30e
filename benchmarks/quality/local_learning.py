"""Whether a team of 135M models learns on a CPU: tldr, and the easy part of code collaboration.

For each task and seed two runs of backend local play the same problems with the same seeds: one
learns, and the control has learning rate 0, so that it draws from the untrained policy to its end.
A run visits each of a few train problems once in each fifth of its episodes. Then both teams play
the test problems: what the control earns there is what the team was worth before.

    python -m benchmarks.quality.local_learning [--seeds N] [--folder DIR] [--at-once N] [--gpu]
        [--write] [--only TASK ARM SEED]

Each run is a process of its own with one thread, two at a time; with --gpu all share a GPU, and the
section is one of its own. All lie in --folder, so that a cut-off benchmark goes on where it was;
`--only tldr learning 0` plays one run and stops.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import kept, page
from benchmarks.problems import spread, written
from benchmarks.quality.local_learning_plot import draw
from benchmarks.quality.local_learning_report import ARMS, LEARNING, VISITS, Played, Results, report
from benchmarks.stats import done
from orchestry.core.config import validate
from orchestry.core.files import json_lines
from orchestry.core.types import Problem, Split
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import resume, train
from orchestry.engine.session import Silent
from orchestry.store.run import load_run
from orchestry.task.registry import load_task

PLOT = page.ROOT / "docs" / "local_learning.svg"


@dataclass(frozen=True, slots=True)
class Setting:
    """How a task is played."""

    task: str
    problems: int
    """Of the train split, evenly spread over it."""
    sampling: Mapping[str, Any]
    learn: Mapping[str, Any]
    grade: int | None = None
    """Of the problems, train and test; None: all."""

    def of(self, split: Split) -> list[Problem]:
        """The problems of a split that count here."""
        whole = load_task(self.task).problems(split)
        return [one for one in whole if self.grade in (None, one.data.get("grade"))]


LEARN: Mapping[str, Any] = {
    "device": "cpu",
    "group_size": 4,
    "learning_rate": 1e-3,
    "top_p": 1.0,
    "dtype": "bfloat16",
    "micro_tokens": 1024,
    "threads": 1,
}
"""Chosen on seeds from 100 on, by rewards on train problems alone."""
SETTINGS = (
    Setting(
        "tldr",
        problems=8,
        sampling={"max_tokens": 64, "temperature": 0.8},
        learn={"every": 4},
    ),
    Setting(
        "code_collaboration",
        problems=10,
        sampling={"max_tokens": 64, "temperature": 0.8},
        learn={"every": 5, "top_p": 0.95},
        grade=1,
    ),
)


class Notes(Silent):
    """What a run says goes to stderr, with its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def note(self, text: str) -> None:
        print(f"{self._name}: {text}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the runs lie, and what they start from."""

    folder: Path
    model: str = "embedded"
    learn: Mapping[str, Any] = field(default_factory=lambda: LEARN)

    def play(self, setting: Setting, arm: str, seed: int) -> Played:
        """A run and its team on the test problems: from the start, or what is missing."""
        place, notes = self.place(setting, arm, seed), Notes(f"{setting.task} {arm} {seed}")
        times = place.with_name(f"{place.name}.times.jsonl")
        if not (place / "journal.jsonl").exists():
            with timed(times):
                run = train(validate(self.config(setting, arm, seed)), place, notes)
        elif not done(run := load_run(place)):
            with timed(times):
                run = resume(place, observer=notes)
        test = evaluate(run, "test", observer=notes) if done(run) else run
        if not done(test):
            raise SystemExit(f"{place} stopped before its end: the same command goes on")
        spent = [json.loads(line) for _, line in json_lines(times.read_bytes())]
        wall_s, cpu_s = (sum(one[name] for one in spent) for name in ("wall_s", "cpu_s"))
        return Played(run, test, wall_s, cpu_s)

    def config(self, setting: Setting, arm: str, seed: int) -> dict[str, Any]:
        """What is played, as plain data."""
        rate = {} if arm == LEARNING else {"learning_rate": 0.0}
        return {
            "backend": "local",
            "task": setting.task,
            "options": {"path": str(self.bank(setting))},
            "episodes": VISITS * setting.problems,
            "seed": seed,
            "provider": {"model": self.model},
            "sampling": setting.sampling,
            "learn": {**self.learn, **setting.learn, **rate},
        }

    def bank(self, setting: Setting) -> Path:
        """A file with the few train problems and all test problems."""
        problems = [*spread(setting.of("train"), setting.problems), *setting.of("test")]
        return written(self.folder / f"{setting.task}-{setting.problems}.jsonl", problems)

    def place(self, setting: Setting, arm: str, seed: int) -> Path:
        """The folder of an arm's run."""
        plain = self.config(setting, arm, seed) | {"options": self.bank(setting).name}
        return kept.place(self.folder, f"{setting.task}-{arm}-{seed}", plain)


@contextmanager
def timed(times: Path) -> Iterator[None]:
    """Adds a line with what a process spent on a run, unless it is killed; a resumed run has
    several."""
    wall, cpu = time.monotonic(), sum(os.times()[:4])
    try:
        yield
    finally:
        spent = {"wall_s": time.monotonic() - wall, "cpu_s": sum(os.times()[:4]) - cpu}
        with times.open("a") as file:
            file.write(json.dumps(spent) + "\n")


def play_all(bench: Bench, seeds: Sequence[int], at_once: int) -> Results:
    """All runs in processes of their own, so many at once; then what they came to."""
    for setting in SETTINGS:
        bench.bank(setting)  # before processes that start together could both write it
    jobs = [(setting, arm, seed) for seed in seeds for setting in SETTINGS for arm in ARMS]
    with ThreadPoolExecutor(at_once) as pool:
        playing = [pool.submit(_in_process, bench, *job) for job in jobs]
        try:
            for one in as_completed(playing):
                one.result()
        except BaseException:  # Ctrl-C too: what runs stops by itself, and no more is begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    played = {
        setting.task: {arm: [bench.play(setting, arm, seed) for seed in seeds] for arm in ARMS}
        for setting in SETTINGS
    }
    return Results(played, seeds, at_once)


def _in_process(bench: Bench, setting: Setting, arm: str, seed: int) -> None:
    module = "benchmarks.quality.local_learning"
    command = [sys.executable, "-m", module, "--folder", str(bench.folder)]
    gpu = ["--gpu"] if bench.learn["device"] == "cuda" else []
    subprocess.run(
        [*command, *gpu, "--only", setting.task, arm, str(seed)],
        cwd=page.ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
    )


def main() -> None:
    """Plays what is missing, then prints or writes section and plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-local-learning"))
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time, a core each")
    parser.add_argument("--gpu", action="store_true", help="on a GPU that all runs share")
    parser.add_argument("--only", nargs=3, metavar=("TASK", "ARM", "SEED"), help="play that one")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and plot")
    args = parser.parse_args()
    learn = {**LEARN, "device": "cuda"} if args.gpu else LEARN
    bench = Bench(args.folder.absolute(), learn=learn)
    if args.only:
        task, arm, seed = args.only
        bench.play(next(one for one in SETTINGS if one.task == task), arm, int(seed))
        return
    results = play_all(bench, range(args.seeds), args.at_once)
    body = report(results, plot=not args.gpu)
    print(body)
    if args.write:
        command = f"python -m benchmarks.quality.local_learning --seeds {args.seeds}"
        if args.gpu:
            command += f" --at-once {args.at_once} --gpu"
            page.write(
                "local_learning_gpu",
                f"{command} --write",
                f"All runs on one {page.gpu()}.\n\n{body}",
            )
        else:
            draw(results.curves(), PLOT)
            page.write("local_learning", f"{command} --write", body)


if __name__ == "__main__":
    main()
