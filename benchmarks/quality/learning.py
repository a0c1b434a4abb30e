"""What learning behaviours is worth on the embedded model, beside gepa.optimize and best-of-n.

For each seed, two learners get the same number of calls of the same model: a run of ours on
code_review's train split, with behaviours distilled by the embedded model itself and tried on dev;
and GEPA, whose components are the three agents' system prompts, with train as its training and dev
as its validation set. Then every arm plays the test split: the task's own prompts, those with what
our library accepted, and GEPA's best ones, by the same small beam; and the task's own prompts by
best-of-n at the beam's calls. Arms share the answers of equal requests.

    python -m benchmarks.quality.learning [--seeds N] [--episodes N] [--problems N] [--folder DIR]
        [--only ARM] [--seed N] [--write]

All runs lie in --folder, so that a cut-off benchmark goes on where it was, and seeds may be played
side by side, each by a process with --seed and a core of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from benchmarks import page
from benchmarks.peers.overhead import python_of
from benchmarks.quality import learning_report
from benchmarks.quality.learning_host import Optimised, calls_of, optimise
from benchmarks.stats import done
from orchestry.backends.api.library import IN_RUN
from orchestry.core.config import validate
from orchestry.engine.run import resume, train
from orchestry.engine.session import Silent
from orchestry.store.run import Run, load_run
from orchestry.task.registry import load_task

MAX_TOKENS = 128
PROVIDER: Mapping[str, Any] = {"name": "embedded"}
EPISODES = 8
PLAY = {"k_samples": 2, "beam_width": 1}
"""6 calls per problem of three agents, in the test."""
EXPLORE = {"k_samples": 4, "beam_width": 2}
"""20 calls per problem, in training: with fewer, most problems show no contrast to learn from."""
LEARNING = {"enabled": True, "every": 4, "share": 3.0}
"""Most of the calls go to trials, which decide what is accepted; a longer trial than 100 pairs
could not be paid for, and one that knows it plans for the larger gain that 100 pairs can show."""
Learner = Literal["none", "library", "gepa"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to play the test split: whose prompts, and which search."""

    label: str
    learner: Learner
    strategy: str


ARMS = {
    "on": Arm("library on, beam", "library", "beam"),
    "off": Arm("library off, beam", "none", "beam"),
    "best_of_n": Arm("library off, best of n at equal calls", "none", "best_of_n"),
    "gepa": Arm("GEPA's prompts, beam", "gepa", "beam"),
}


class Notes(Silent):
    """What a run says goes to stderr."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the runs lie, how large they are, who answers, and how the peer is started."""

    folder: Path
    episodes: int = EPISODES
    problems: int | None = None
    """Of the test split; None: all."""
    provider: Mapping[str, Any] = field(default_factory=lambda: PROVIDER)
    peer: Sequence[str] = ()
    """The optimiser's command; (): GEPA in its own environment."""

    def train(self, seed: int) -> Run:
        """Our learner's run."""
        changes = {"search": EXPLORE, "behaviors": LEARNING, "episodes": self.episodes}
        return self._run("train", seed, {"split": "train", **changes})

    def gepa(self, seed: int) -> Optimised:
        """GEPA's, with as many calls as ours took."""
        calls = calls_of(self.train(seed).summary.usage)
        config = self._config(seed, {"split": "train"})
        command = self.peer or (python_of("gepa"), "-m", "benchmarks.peers.learning_gepa")
        print(f"GEPA, seed {seed}, {calls} calls", file=sys.stderr)
        return optimise(validate(config), self._place("gepa", config, calls), calls, command)

    def test(self, name: str, seed: int) -> Run:
        """One arm on the test split, after what it needs was learned."""
        arm = ARMS[name]
        changes: dict[str, Any] = {
            "split": "test",
            "episodes": self.problems or len(load_task("code_review").problems("test")),
            "search": {**PLAY, "strategy": arm.strategy},
        }
        if arm.learner == "library":
            changes["behaviors"] = {"enabled": False, "from": self.train(seed).folder / IN_RUN}
        if arm.learner == "gepa":
            prompts = self.gepa(seed).winner.prompts
            changes["agents"] = {role: {"system_prompt": text} for role, text in prompts.items()}
        return self._run(name, seed, changes)

    def _run(self, name: str, seed: int, changes: Mapping[str, Any]) -> Run:
        """A run from its start, or the rest of it, or what it came to."""
        config = self._config(seed, changes)
        place = self._place(name, config)
        if not (place / "journal.jsonl").exists():
            print(f"{place.name} begins", file=sys.stderr)
            run = train(validate(config), place, Notes())
        elif not done(run := load_run(place)):
            run = resume(place, observer=Notes())
        if not done(run):  # Ctrl-C: what depends on it would be learned from half of it
            raise SystemExit(f"{place} stopped before its end: the same command goes on")
        return run

    def _config(self, seed: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "task": "code_review",
            "seed": seed,
            "provider": dict(self.provider),
            "sampling": {"max_tokens": MAX_TOKENS},
            "judge": {"enabled": False},
            "behaviors": {"enabled": False},
            "cache": {"dir": self.folder / "answers"},
            "allow_unsafe_code": True,
        }
        search = {"concurrency": 8, **changes.get("search", {})}
        return {**plain, **changes, "search": search}

    def _place(self, name: str, config: Mapping[str, Any], *more: object) -> Path:
        """A folder for each config, so that no result of another one is ever taken for its own."""
        text = json.dumps([config, *more], sort_keys=True, default=str)
        digest = blake2b(text.encode(), digest_size=4).hexdigest()
        return self.folder / f"{name}-{config['seed']}-{digest}"


def main() -> None:
    """Plays what is missing, then prints or writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="of training, a seed")
    parser.add_argument("--problems", type=int, help="only the first N of the test split")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-learning"))
    parser.add_argument("--provider", choices=["embedded", "fake"], default="embedded")
    parser.add_argument("--only", choices=["train", "gepa", *ARMS], help="play that, then stop")
    parser.add_argument("--seed", type=int, help="play only this one of the seeds, then stop")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    part = args.only or args.seed is not None
    seeds = range(args.seeds) if args.seed is None else [args.seed]
    if args.write and (part or args.provider == "fake"):
        parser.error("--write is for whole runs of the embedded model")
    provider = {"name": args.provider}
    bench = Bench(args.folder, args.episodes, args.problems, provider)
    if args.only:
        for seed in seeds:
            play(bench, args.only, seed)
        return
    found = results(bench, seeds)
    if part:
        return
    body = learning_report.report(found)
    print(body)
    if args.write:
        page.write("learning", _command(args), body)


def play(bench: Bench, name: str, seed: int) -> None:
    """One arm or one learner."""
    if name == "train":
        bench.train(seed)
    elif name == "gepa":
        bench.gepa(seed)
    else:
        bench.test(name, seed)


def results(bench: Bench, seeds: Sequence[int]) -> learning_report.Results:
    """All learners and arms of these seeds, seed by seed."""
    trained, optimised = list[Run](), list[Optimised]()
    tested: dict[str, list[Run]] = {name: [] for name in ARMS}
    for seed in seeds:
        trained.append(bench.train(seed))
        optimised.append(bench.gepa(seed))
        for name in ARMS:
            tested[name].append(bench.test(name, seed))
    labels = {name: arm.label for name, arm in ARMS.items()}
    return learning_report.Results(labels, trained, optimised, tested, MAX_TOKENS)


def _command(args: argparse.Namespace) -> str:
    options = [f"--seeds {args.seeds}", f"--episodes {args.episodes}"]
    options += [f"--problems {args.problems}"] if args.problems else []
    return " ".join(["python -m benchmarks.quality.learning", *options, "--write"])


if __name__ == "__main__":
    main()
