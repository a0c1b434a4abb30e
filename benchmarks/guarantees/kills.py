"""Runs of each kind killed by kill -9 under a clock that jumps, then resumed, beside unbroken ones.

Kinds: local weights, PPO, a sweep, a program of its own (attach), and a recipe. Each run is a
process. Half of a kind's kills are spread over the time of the unbroken run, half over the number
of its files, so that they meet checkpoints, evaluations and stages. The clock of a killed run, and
of its resume, is another every 0.2 s, hours ahead or behind; that of the unbroken run is true.

    python -m benchmarks.guarantees.kills [--kinds local,ppo,...] [--kills N] [--seed S]
        [--workers N] [--json] [--write]
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.stats import columns
from orchestry.core.files import json_lines, to_yaml

COMMAND = "python -m benchmarks.guarantees.kills --write"
CLI = (sys.executable, "-m", "orchestry")
JUMPING = Path(__file__).parent / "jumping"
PATIENCE_S = 240.0
"""Longest life of one process."""
POLL_S = 0.005
TIMES = {"at", "seconds", "tokens_per_s", "train/steps_per_sec", "run_dir"}
"""Fields that hold a time, a speed, or the run's folder."""
DRAWN = {"call", "crc", "owner", "confirms"}
"""A call's number, a line's checksum, a machine's and a process's random name."""
COUNTS = {"calls", "input_tokens", "output_tokens", "usage", "calls_by_provider"}
"""Figures of summary.json that count answers drawn again."""
UNSEEN = {"opened", "reserved", "released", "lost", "rolled_back", "stopped"}
"""Events that tell what happened to the process."""
NOTES = {"journal.head", "log.txt", "machine.json", "study.db", "run.lock", "sweep.lock"}
"""Files that tell it, or repeat what others of the run say."""

PROGRAM = """
import json, os, urllib.request
from os import environ

def ask(agent, text):
    body = {"model": agent, "messages": [{"role": "user", "content": text}]}
    asked = urllib.request.Request(
        environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {"authorization": "Bearer " + environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

draft = ask("writer", json.loads(environ["ORCHESTRY_PROBLEM"])["prompt"])
final = ask("editor", "Shorten this: " + draft)
print(json.dumps({"reward": final.count("e") / max(1, len(final)), "feedback": final[:9]}))
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is started in a folder, and by which files it can be resumed."""

    command: Callable[[Path, Path], list[str]]
    """Of the folder that all runs share and the run's own."""
    compared: str
    begun: tuple[str, ...] = ("config.yaml", "journal.jsonl")
    redraws: bool = False
    """Answers of the weights since the last update are drawn again; all others never."""
    resumes: bool = True
    """By `orchestry resume`; else by the command that began it."""


def _sets(*settings: str) -> list[str]:
    return [word for one in settings for word in ("--set", one)]


def _run(folder: Path, *words: str) -> list[str]:
    return ["run", "--run-dir", str(folder), "--trust", "--json", *words]


def local(shared: Path, folder: Path) -> list[str]:
    from tests.backends.letters import settings

    more = ("episodes=24", "learn.evaluate_every=2", "learn.evaluate_problems=2")
    chosen = settings(str(shared / "tiny"), shared / "tasks", *more)
    return _run(folder, *_sets(*chosen))


def ppo(shared: Path, folder: Path) -> list[str]:
    small = ("games=16", "horizon=8", "minibatch=256", "steps=20000", "checkpoint_every=2000")
    more = ("keep=2", "evaluate_every=3000", "evaluate_games=32", "pool=3", "pool_every=3000")
    words = ("--backend", "ppo", "--task", "bucket_brigade")
    return _run(folder, *words, *_sets(*(f"ppo.{one}" for one in (*small, *more))))


def sweep(shared: Path, folder: Path) -> list[str]:
    words = ("--config", str(shared / "sweep.yaml"), "--dir", str(folder), "--trust", "--json")
    return ["sweep", *words]


def attach(shared: Path, folder: Path) -> list[str]:
    words = ("--task", "program", "--task-path", str(shared / "tasks"), "--provider", "fake")
    chosen = ("episodes=4", "search.k_samples=2", "provider.fake.latency_s=0.1")
    return _run(folder, *words, *_sets(*chosen, "cache.enabled=false"))


def recipe(shared: Path, folder: Path) -> list[str]:
    from tests.ext.recipes.test_recipes import sets

    chosen = sets("search+magrpo", str(shared / "tiny"), shared / "tasks", "learn.every=2")
    kept = [one for one in chosen if not one.startswith("recipe.stages.distil")]
    return _run(folder, *_sets(*kept, "recipe.stages.1.provider.fake.latency_s=0.1"))


WEIGHTS = "episodes, metrics, rewards, adapters, optimizer"
KINDS = {
    "local": Kind(local, f"{WEIGHTS}, answers, evaluations on dev, summary", redraws=True),
    "ppo": Kind(ppo, "progress, policies, Adam's moments, opponents' pool, evaluations, summary"),
    "sweep": Kind(
        sweep, "trials, best trial, best.yaml, each run's and evaluation's files", (), resumes=False
    ),
    "attach": Kind(attach, "episodes, metrics, rewards, answers, each paid once, summary"),
    "recipe": Kind(
        recipe, f"of each stage: {WEIGHTS}, answers, evaluations", ("config.yaml",), redraws=True
    ),
}


def furnish(shared: Path, kinds: Iterable[str]) -> None:
    """What the runs share: a tiny model of random weights, tasks, a program, a sweep's file."""
    from tests.backends.letters import TASK, write_task

    tasks = write_task(shared / "tasks", TASK)
    if {"local", "recipe"} & {*kinds}:
        from tests.backends.local.tiny import tiny_folder

        tiny_folder(shared / "tiny")
    (shared / "program.py").write_text(PROGRAM, encoding="utf-8")
    problems = [{"id": f"p{n}", "prompt": f"What is {n}?", "split": "train"} for n in range(4)]
    lines = "".join(json.dumps(one) + "\n" for one in problems)
    (shared / "problems.jsonl").write_text(lines, encoding="utf-8")
    told = ("program", "--problems", str(shared / "problems.jsonl"), "--agents", "writer,editor")
    program = ("--dir", str(tasks), "--", sys.executable, str(shared / "program.py"))
    said = subprocess.run(
        [*CLI, "attach", *told, *program], cwd=page.ROOT, capture_output=True, text=True
    )
    if said.returncode:
        raise RuntimeError(f"attach failed: {said.stderr[-1000:]}")
    run = {
        "task": "words",
        "task_path": [str(page.ROOT / "tests" / "fixtures" / "tasks")],
        "episodes": 4,
        "provider": {"name": "fake", "fake": {"latency_s": 0.02}},
    }
    keys = {"search.k_samples": {"low": 1, "high": 4}, "search.strategy": ["beam", "best_of_n"]}
    found = {"run": run, "keys": keys, "trials": 3, "measure": {"episodes": 3}}
    (shared / "sweep.yaml").write_text(to_yaml({**found, "confirm": {"seeds": 1}}))


# --- what is equal --------------------------------------------------------------------------------


def artefacts(kind: Kind, folder: Path) -> dict[str, Any]:
    """Every file of a run but locks and notes of processes, without its times."""
    files = [path for path in _files(folder) if path.name not in NOTES]
    return {str(path.relative_to(folder)): _content(kind, path, folder) for path in files}


def _content(kind: Kind, path: Path, folder: Path) -> Any:
    if path.name == "journal.jsonl":
        events = [_timeless(json.loads(line)) for _, line in json_lines(path.read_bytes())]
        seen = [json.dumps(e, sort_keys=True) for e in events if e["kind"] not in UNSEEN]
        return sorted({*seen} if kind.redraws else seen)
    if path.suffix == ".json":
        found = _timeless(json.loads(path.read_text().replace(str(folder), "RUN")))
        counts = COUNTS if kind.redraws and path.name == "summary.json" else set[str]()
        return {key: value for key, value in found.items() if key not in counts}
    if path.suffix == ".jsonl":
        data = path.read_bytes().replace(str(folder).encode(), b"RUN")
        return [_timeless(json.loads(line)) for _, line in json_lines(data)]
    return path.read_bytes().replace(str(folder).encode(), b"RUN")


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(one) for key, one in value.items() if key not in TIMES | DRAWN}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


# --- kills ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """The unbroken run: its files' content, its time from its beginning on, and their number."""

    artefacts: dict[str, Any]
    life_s: float
    files: int


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: so long after the run has begun and has so many files."""

    files: float
    delay_s: float
    clock: int
    """The seed of the clocks."""
    children: bool
    """Whether the processes that it started are killed with it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One killed run. `place`: the newest file's folder at the kill; `faults`: in words."""

    place: str
    faults: list[str]


def start(words: Sequence[str], home: Path, clock: int | None = None) -> subprocess.Popen[str]:
    """The command, in a process with a cache of its own and, by a seed, a clock that jumps."""
    jumps = {} if clock is None else {"JUMPING_CLOCK": str(clock)}
    paths = os.pathsep.join([str(JUMPING), str(page.ROOT)])
    own = {"XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    with (home / "said").open("a") as said:
        return subprocess.Popen(
            [*CLI, *words],
            env=os.environ | own | jumps,
            stdout=said,
            stderr=said,
            text=True,
            cwd=page.ROOT,
        )


def whole_run(kind: Kind, shared: Path, home: Path) -> Whole:
    """The run that nobody disturbs."""
    folder = home / "run"
    process = start(kind.command(shared, folder), home)
    _wait(lambda: _begun(kind, folder), process)
    began = time.monotonic()
    if process.wait(PATIENCE_S):
        raise RuntimeError(f"the unbroken run failed: {(home / 'said').read_text()[-2000:]}")
    life_s, files = time.monotonic() - began, len(_files(folder))
    return Whole(artefacts(kind, folder), life_s, files)


def killed(kind: Kind, shared: Path, home: Path, moment: Moment, whole: Whole) -> Outcome | None:
    """One run killed and resumed; None where it had ended before."""
    folder = home / "run"
    process = start(kind.command(shared, folder), home, moment.clock)
    _wait(lambda: _begun(kind, folder) and len(_files(folder)) >= moment.files, process)
    time.sleep(moment.delay_s)
    children = list(_descendants(process.pid)) if moment.children else []
    process.kill()
    for child in children:
        _kill(child)
    if process.wait() != -signal.SIGKILL:
        return None
    place = _newest(folder)
    again = ["resume", str(folder), "--json"] if kind.resumes else kind.command(shared, folder)
    code = start(again, home, moment.clock + 1).wait(PATIENCE_S)
    if code:
        said = (home / "said").read_text()[-1000:]
        return Outcome(place, [f"resume ended with {code}: {said}"])
    now, then = artefacts(kind, folder), whole.artefacts
    faults = [f"{name} differs" for name in now.keys() & then if now[name] != then[name]]
    faults += [f"{name} is there only once" for name in now.keys() ^ then]
    return Outcome(place, sorted(faults))


def _begun(kind: Kind, folder: Path) -> bool:
    return folder.exists() and all((folder / name).exists() for name in kind.begun)


def _files(folder: Path) -> list[Path]:
    """Those that are there; they may vanish while they are listed."""
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names]


def _newest(folder: Path) -> str:
    path = max(_files(folder), key=lambda one: one.stat().st_mtime_ns)
    return "/".join(path.relative_to(folder).parts[:-1]) or path.name


def _wait(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready() and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"no such moment within {PATIENCE_S:g} s")
        time.sleep(POLL_S)


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from _descendants(child)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def moments(whole: Whole, count: int, rng: random.Random) -> list[Moment]:
    """Half spread over the time, half over the files."""
    over_files = count // 2
    shares = [(n + rng.random()) / (count - over_files) for n in range(count - over_files)]
    files = [(n + rng.random()) / over_files * whole.files for n in range(over_files)]
    plain = [(0.0, share * whole.life_s) for share in shares]
    plain += [(most, rng.uniform(0, 0.05)) for most in files]
    return [Moment(*one, rng.randrange(2**30), rng.random() < 0.5) for one in plain]


def play(name: str, kills: int, seed: int, workers: int, shared: Path) -> dict[str, Any]:
    """One kind's figures."""
    kind, rng, began = KINDS[name], random.Random(f"{seed}/{name}"), time.perf_counter()
    with tempfile.TemporaryDirectory() as home:
        whole = whole_run(kind, shared, Path(home))

    def once(moment: Moment) -> Outcome:
        with tempfile.TemporaryDirectory() as home:
            found = killed(kind, shared, Path(home), moment, whole)
        if found is None:  # it was faster than the unbroken run: an earlier moment
            early = Moment(moment.files * 0.8, moment.delay_s * 0.8, moment.clock, moment.children)
            return once(early)
        print(f"{name}: {moment}: {found}", file=sys.stderr)
        return found

    with ThreadPoolExecutor(workers) as pool:
        outcomes = list(pool.map(once, moments(whole, kills, rng)))
    return {
        "kind": name,
        "kills": len(outcomes),
        "equal": sum(not one.faults for one in outcomes),
        "files": len(whole.artefacts),
        "places": dict(Counter(one.place for one in outcomes)),
        "faults": dict(Counter(fault for one in outcomes for fault in one.faults)),
        "life_s": round(whole.life_s, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }


def section(found: Sequence[dict[str, Any]]) -> str:
    rows = [
        {
            "kind": one["kind"],
            "kills": str(one["kills"]),
            "equal": f"**{one['equal']}**",
            "compared": KINDS[one["kind"]].compared,
            "files": str(one["files"]),
            "newest file at the kill, in": ", ".join(
                f"{p} ({n})" for p, n in one["places"].items()
            ),
            "life, s": f"{one['life_s']:.1f}",
        }
        for one in found
    ]
    faults = [f"{o['kind']}: {what}, {n} times" for o in found for what, n in o["faults"].items()]
    return (
        "Each run is killed once by kill -9 and resumed; the sweep goes on by its own command. "
        "Half of the kills are spread over the time of the unbroken run, half over the number of "
        "its files; half of them take the processes that it started along. Every 0.2 s the clock "
        "of the killed run, and of its resume, is another up to 12 hours ahead or behind. Equal: "
        "every file is that of the unbroken run, under a true clock, byte for byte. Left out are "
        "times, speeds, random names and the run's folder, and of the journal what tells of the "
        "process (opened, reserved, released, lost, rolled back, stopped). Weights draw a block "
        "again that no update had ended: of local and recipe, summary.json's counts of calls and "
        "tokens, which count both, are left out too.\n\n"
        f"{columns(rows)}\n\nFaults: {'; '.join(faults) or 'none'}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which, by comma")
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="runs side by side")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    with tempfile.TemporaryDirectory() as folder:
        furnish(Path(folder), kinds)
        found = [play(k, args.kills, args.seed, args.workers, Path(folder)) for k in kinds]
    print(json.dumps(found) if args.json else section(found))
    if args.write:
        page.write("kills", COMMAND, section(found))
    if any(one["faults"] for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
