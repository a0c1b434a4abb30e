"""How the speed and memory of Bucket Brigade's games, and of PPO in them, grow with games, agents
and threads.

    python -m benchmarks.peers.bucket_scale [--seconds S] [--gpu] [--write]

`--gpu` plays PPO's rows on a GPU and on the same machine's CPU instead.
Every row is a process of its own, with the defaults of `ppo.*` but for what the row says. Games are
played on one thread, so their row with two plays them in two processes at once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from benchmarks import page
from benchmarks.peers.bucket_speed import compiled
from benchmarks.stats import columns
from orchestry.core.config import validate
from orchestry.task.registry import load_task
from orchestry.task.vector import VectorTask

SCENARIO = "default"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Setting:
    """One row."""

    what: str
    """`games` or `ppo`."""
    games: int
    agents: int = 4
    threads: int = 1
    device: str = "cpu"
    hidden: int = 64
    """Width of both hidden layers of policy and critic."""


GAMES, PPO = Setting("games", 1024), Setting("ppo", 256)
SETTINGS = (
    *(replace(GAMES, games=count) for count in (64, 256, 1024, 4096, 16_384)),
    *(replace(GAMES, agents=count) for count in (6, 8, 10)),
    replace(GAMES, threads=2),
    *(replace(PPO, games=count) for count in (16, 64, 256, 1024, 4096)),
    *(replace(PPO, agents=count) for count in (6, 8, 10)),
    *(replace(PPO, games=count, threads=2) for count in (256, 1024)),
)
ON_A_GPU = tuple(
    replace(PPO, hidden=hidden, games=games, device=device, threads=threads)
    for hidden, games in ((64, 256), (64, 4096), (512, 256), (512, 4096))
    for device, threads in (("cpu", 1), ("cpu", 8), ("cuda", 1))
    if (hidden, games, device, threads) != (512, 4096, "cpu", 1)  # minutes per batch
)
Line = Mapping[str, float]


def learning(setting: Setting) -> Callable[[], int]:
    """Batches of PPO: games and learning. Says how many steps one takes."""
    import torch  # here, since memory is measured

    from orchestry.backends.ppo.learner import Learner, Seats

    torch.set_num_threads(setting.threads)
    task: object = load_task(
        "bucket_brigade", options={"scenario": SCENARIO, "agents": setting.agents}
    )
    assert isinstance(task, VectorTask)
    own = {"games": setting.games, "hidden": [setting.hidden] * 2}
    settings = validate({"ppo": own}).ppo
    games = task.vectors(setting.games, 0)
    seats = Seats(tuple(range(setting.agents)))
    learner = Learner(games, settings, seats, device=setting.device)

    def play() -> int:
        learner.iterate()
        return learner.batch_steps

    return play


def alone(setting: Setting, seconds: float) -> Line:
    """In this process: steps, and what they took, after a first round that compiles."""
    ppo, steps = setting.what == "ppo", 0
    play = learning(setting) if ppo else compiled(SCENARIO, setting.games, setting.agents)
    play()
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        steps += play()
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "steps": steps,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


def apart(setting: Setting, seconds: float) -> Line:
    """In a process of its own; games with two threads in two at once, their figures added up."""
    count = setting.threads if setting.what == "games" else 1
    environ = {**os.environ, "OMP_NUM_THREADS": str(setting.threads)}
    own = [json.dumps(asdict(setting)), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.peers.bucket_scale", "--one", *own]
    begun = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, cwd=page.ROOT)
        for _ in range(count)
    ]
    said = [process.communicate()[0] for process in begun]
    if any(process.returncode for process in begun):
        raise RuntimeError(f"{setting} failed: see above")
    lines: list[Line] = [json.loads(one) for one in said]
    total = {name: sum(line[name] for line in lines) for name in lines[0]}
    return {**total, "wall_s": max(line["wall_s"] for line in lines)}


def rows(settings: tuple[Setting, ...], seconds: float) -> Iterator[dict[str, str]]:
    """The table."""
    for setting in settings:
        line = apart(setting, seconds)
        yield {
            "what": {"games": "games", "ppo": "PPO"}[setting.what],
            "games": f"{setting.games:,}",
            "agents": str(setting.agents),
            "threads": str(setting.threads),
            "hidden": f"2 x {setting.hidden}",
            "on": {"cpu": "CPU", "cuda": "GPU"}[setting.device],
            "steps/s": f"{line['steps'] / line['wall_s']:,.0f}",
            "agent-steps/s": f"{setting.agents * line['steps'] / line['wall_s']:,.0f}",
            "cores used": f"{line['cpu_s'] / line['wall_s']:.2f}",
            "peak memory, MiB": f"{line['rss'] / _MIB:,.0f}",
        }
        print(f"{setting}: {line}", file=sys.stderr)


def main() -> None:
    """Measures, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="per row, at least one batch")
    parser.add_argument("--gpu", action="store_true", help="PPO on a GPU, beside the CPU")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    if args.one:
        setting, seconds = args.one
        print(json.dumps(alone(Setting(**json.loads(setting)), float(seconds))))
        return
    settings = ON_A_GPU if args.gpu else SETTINGS
    head = f"The GPU: {page.gpu()}. " if args.gpu else ""
    body = (
        f"{head}Scenario {SCENARIO}, 10 houses, wall clock of {args.seconds:g} s or a batch. "
        "Games: random actions, observations and new games; two "
        "threads are two processes, whose memory is added up. PPO: games and learning, with the "
        "defaults of `ppo.*`. Steps are environment steps. Peak memory is that of whole processes, "
        "with Python, numba and torch.\n\n"
        f"{columns([*rows(settings, args.seconds)], figures=False)}"
    )
    print(body)
    if args.write:
        command = f"python -m benchmarks.peers.bucket_scale --seconds {args.seconds:g}"
        gpu = " --gpu" if args.gpu else ""
        page.write("bucket_gpu" if args.gpu else "bucket_scale", f"{command}{gpu} --write", body)


if __name__ == "__main__":
    main()
