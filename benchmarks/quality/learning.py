"""What learning prompts is worth on real models, beside GEPA, two optimisers of DSPy and best-of-n.

For each task and seed, a run of ours with the library's defaults learns on train and dev. Every
other learner gets the same problems, model and reward, and at most as many calls as ours took.
Then every contestant's team plays the test split, which nobody has seen, with k independent samples
a problem: their mean is the reward at one sample, their maximum that of best-of-k. `off` is the
task's own prompts, so its maximum is best-of-n.

    python -m benchmarks.quality.learning [--tasks NAME...] [--seeds N] [--episodes N] [--samples K]
        [--provider NAME] [--model NAME] [--base-url URL] [--budget USD] [--dry-run]
        [--set A.B=C...] [--folder DIR] [--contestants NAME...] [--only CONTESTANT] [--seed N]
        [--headroom] [--write]

`--dry-run` prints what it would cost. `--budget` caps the whole table, and a larger one goes on.
All runs lie in --folder, so that a cut-off benchmark goes on where it was, and what was asked once
is never paid again; runs that this repository keeps (benchmarks/kept) are taken from there. With a
free model, seeds may be played side by side, each by a process with --seed and a core of its own.
`--provider local --model NAME` plays an untrained base by backend local's sampler, on one core.
With a model that is paid for, answers may be as long as the library's defaults allow. `--set` is
for all runs: a model whose price is unknown needs its `prices.MODEL.input` and
`prices.MODEL.output`, in dollars per million tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from benchmarks import kept, page
from benchmarks.peers.overhead import python_of
from benchmarks.quality import learning_cost, learning_report
from benchmarks.quality.learning_host import Optimised, calls_of, optimise
from benchmarks.stats import done
from orchestry.backends.library import IN_RUN, Library, read_library
from orchestry.core.config import validate
from orchestry.core.errors import BudgetExceeded, OrchestryError
from orchestry.core.resolve import merge, settings_of
from orchestry.core.types import Split
from orchestry.engine.run import resume, train
from orchestry.engine.session import Silent
from orchestry.store.journal import read as read_journal
from orchestry.store.run import Run, load_run
from orchestry.store.summary import NANO, replay
from orchestry.task.registry import load_task

TASKS = ("tldr", "arxiv", "code_collaboration")
CODE = ("code_review", "code_collaboration")
"""Code tasks whose headroom is measured; the one with most of it is played."""
EPISODES = {"tldr": 10}
"""Of training by task: two updates of the library."""
FEWER_EPISODES = 5
"""Of the other tasks, whose answers are longer: one update."""
SAMPLES = 4
"""Per problem, in the test; our own search's default in training."""
TOKENS = {"tldr": 96, "arxiv": 256}
"""Longest answer of the embedded model by task, in tokens."""
CODE_TOKENS = 160
REFLECTION_TOKENS = 256
"""Longest reflection of the embedded model."""
HERE = ("embedded", "local")
"""Providers whose models run on this machine; their tables are written."""
FREE = (*HERE, "fake")
ON_A_CORE: Mapping[str, Any] = {"device": "cpu", "dtype": "bfloat16", "threads": 1}
"""How provider local draws: several seeds may be played side by side."""
LABELS = {
    "off": "library off",
    "ours": "ours",
    "gepa": "GEPA",
    "bootstrap": "DSPy BootstrapFewShotWithRandomSearch",
    "mipro": "DSPy MIPROv2",
}
"""The contestants, in the order of the tables."""
PEERS = {
    "gepa": ("gepa", "benchmarks.peers.learning_gepa"),
    "bootstrap": ("dspy", "benchmarks.peers.learning_dspy", "bootstrap"),
    "mipro": ("dspy", "benchmarks.peers.learning_dspy", "mipro"),
}
"""Environment, module and arguments of each peer."""


class Notes(Silent):
    """What a run says goes to stderr."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Bench:
    """One task: where the runs lie, how large they are, who answers, and who competes."""

    folder: Path
    task: str = "tldr"
    episodes: int = FEWER_EPISODES
    samples: int = SAMPLES
    provider: Mapping[str, Any] = field(default_factory=lambda: {"name": "embedded"})
    budget: float = 5.0
    """Dollars, of all runs in the folder together."""
    sets: Mapping[str, Any] = field(default_factory=dict)
    """Config keys of all runs, nested."""
    peers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Commands of peers, by name; else each runs in its own environment."""

    def train(self, seed: int) -> Run:
        """Our learner's run."""
        return self._run("train", self.training(seed))

    def learn(self, name: str, seed: int) -> Optimised:
        """A peer's optimisation, with as many calls as ours took."""
        calls = calls_of(self.train(seed).summary.usage)
        config = self._config(seed, {"split": "train", "behaviors": {"enabled": False}})
        place = self._place(name, config, calls)
        environment, *rest = PEERS[name]
        command = self.peers.get(name) or (python_of(environment), "-m", *rest)
        print(f"{name} on {self.task}, seed {seed}, {calls} calls", file=sys.stderr)
        try:
            return optimise(validate(self._capped(config, place)), place, calls, command)
        except BudgetExceeded as error:
            raise SystemExit(_spent(place)) from error

    def test(self, name: str, seed: int) -> Run:
        """A contestant on the test split, after what it needs was learned."""
        team = self.team(name, seed)
        own = {"agents": team} if team else {}
        return self._run(name, merge(self.testing(seed), own))

    def team(self, name: str, seed: int) -> Mapping[str, Mapping[str, Any]]:
        """A contestant's agents by role, as a config has them; {}: the task's own."""
        if name == "off":
            return {}
        if name in PEERS:
            prompts = self.learn(name, seed).winner.prompts
            return {role: {"system_prompt": text} for role, text in prompts.items()}
        run, task = self.train(seed), load_task(self.task)
        config, library = validate(run.config), read_library(run.folder / IN_RUN)
        return {
            spec.role: learned(library, spec.role, config.system_prompt(spec))
            for spec in task.agents
        }

    def headroom(self) -> Run:
        """The task's own prompts on dev: the mean sample beside the best of k."""
        return self._run("headroom", self.testing(0, "dev"))

    def training(self, seed: int) -> dict[str, Any]:
        """The config of our learner's run: the library's defaults, with learning on."""
        changes = {"split": "train", "episodes": self.episodes, "behaviors": {"enabled": True}}
        return self._config(seed, changes)

    def testing(self, seed: int, split: Split = "test") -> dict[str, Any]:
        """The config of k independent samples a problem, without judge and learning."""
        changes = {
            "split": split,
            "episodes": len(load_task(self.task).problems(split)),
            "search": {"strategy": "chains", "k_samples": self.samples},
            "behaviors": {"enabled": False},
        }
        config = self._config(seed, changes)
        return {**config, "judge": {**config.get("judge", {}), "enabled": False}}

    def _run(self, name: str, config: dict[str, Any]) -> Run:
        """A run from its start, or the rest of it, or what it came to."""
        place = self._place(name, config)
        if not (place / "journal.jsonl").exists():
            print(f"{place.name} begins", file=sys.stderr)
            run = train(validate(self._capped(config, place)), place, Notes())
        elif not done(run := load_run(place)):
            budget = self._capped({}, place)["budget"]
            run = resume(place, {"budget": budget}, Notes(), trust=True)
        if run.summary.stopped == "budget":
            raise SystemExit(_spent(place))
        if not done(run):  # Ctrl-C: what depends on it would be learned from half of it
            raise SystemExit(f"{place} stopped before its end: the same command goes on")
        return run

    def _config(self, seed: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "task": self.task,
            "seed": seed,
            "provider": dict(self.provider),
            "allow_unsafe_code": True,
        }
        if self.provider["name"] in FREE:
            plain["sampling"] = {"max_tokens": TOKENS.get(self.task, CODE_TOKENS)}
            plain["judge"] = {"max_tokens": REFLECTION_TOKENS}
        if self.provider["name"] == "local":
            plain["learn"] = dict(ON_A_CORE)
        return merge(merge(plain, self.sets), changes)

    def _place(self, name: str, config: Mapping[str, Any], *more: object) -> Path:
        return kept.place(self.folder, f"{self.task}-{name}-{config['seed']}", config, *more)

    def _capped(self, config: Mapping[str, Any], place: Path) -> dict[str, Any]:
        """The config with what the budget leaves this run, and the answers of all others."""
        left = self.budget - sum(_dollars(one) for one in journals(self.folder, besides=place))
        if left <= 0.0:
            raise SystemExit(_spent(place))
        cache = {"dir": str(self.folder / "answers")}
        return {**config, "budget": {"usd": left}, "cache": cache}


def learned(library: Library, role: str, own: str) -> dict[str, Any]:
    """An agent of our own with what the library taught it."""
    shown = [example.model_dump() for example in library.examples(role)]
    return {"system_prompt": library.system(role, own)} | ({"examples": shown} if shown else {})


def journals(folder: Path, besides: Path) -> Iterator[Path]:
    """The journals of all runs in the folder but one."""
    return (file for file in folder.glob("*/journal.jsonl") if file.parent != besides)


def _dollars(journal: Path) -> float:
    return replay(read_journal(journal)).spent / NANO


def _spent(place: Path) -> str:
    return f"the budget was spent in {place}: the same command with a larger --budget goes on"


def main() -> None:
    """Plays what is missing, then prints or writes the section."""
    parser = _parser()
    args = parser.parse_args()
    part = args.only or args.seed is not None
    if args.write and (part or args.set or args.provider not in HERE):
        parser.error("--write is for whole runs of a free model, without --set")
    if "off" not in args.contestants:
        parser.error("--contestants needs off, beside which all others are measured")
    if min(args.seeds, args.samples) < 1:
        parser.error("--seeds and --samples are at least 1")
    seeds = range(args.seeds) if args.seed is None else [args.seed]
    try:
        benches = [_bench(args, task) for task in args.tasks]
        code = [_bench(args, task) for task in CODE] if args.headroom else []
        names = {name: LABELS[name] for name in LABELS if name in args.contestants}
        if args.dry_run:
            peers = [name for name in PEERS if name in names]
            print(learning_cost.forecast(plans(benches, code), len(seeds), peers))
            return
        if args.provider in HERE:  # whose runs cost nothing, and count against no budget
            kept.restore("learning*", args.folder)
        with _alone(args.folder, args.provider):
            if part:
                play(benches, seeds, [args.only] if args.only else [*names])
                for bench in code:
                    bench.headroom()
                return
            body = learning_report.report(results(benches, code, seeds, names))
    except OrchestryError as error:
        raise SystemExit(str(error)) from error
    print(body)
    if args.write:
        body = f"{body}\n\n{kept.revisions(args.folder, *(f'{task}-*' for task in args.tasks))}"
        page.write(_section(args), _command(args), body)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    episodes = f"of training, a seed; else tldr {EPISODES['tldr']}, others {FEWER_EPISODES}"
    parser.add_argument("--episodes", type=int, help=episodes)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="a test problem (k)")
    parser.add_argument("--provider", default="embedded", help="as of `orchestry run`")
    parser.add_argument("--model", help="the provider's own default, unless given")
    parser.add_argument("--base-url", help="the provider's server, unless it is the vendor's")
    parser.add_argument("--budget", type=float, default=5.0, help="USD, for the whole table")
    parser.add_argument("--dry-run", action="store_true", help="print the cost, ask nobody")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="A.B=C", help="config keys of all runs"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-learning"))
    parser.add_argument(
        "--contestants", nargs="+", choices=LABELS, default=[*LABELS], help="off is needed"
    )
    parser.add_argument("--only", choices=LABELS, help="play this contestant, then stop")
    parser.add_argument("--seed", type=int, help="play only this one of the seeds, then stop")
    parser.add_argument("--headroom", action="store_true", help="of the code tasks, on dev")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser


def _bench(args: argparse.Namespace, task: str) -> Bench:
    named = {"name": args.provider, "model": args.model, "base_url": args.base_url}
    return Bench(
        folder=args.folder,
        task=task,
        episodes=args.episodes or EPISODES.get(task, FEWER_EPISODES),
        samples=args.samples,
        provider={key: value for key, value in named.items() if value is not None},
        budget=args.budget,
        sets=settings_of(args.set),
    )


@contextmanager
def _alone(folder: Path, provider: str) -> Iterator[None]:
    """Holds the folder while money is spent: two processes would each spend the whole budget."""
    if provider in FREE:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise SystemExit(f"another process spends the budget of {folder}: wait for it") from None


def play(benches: Sequence[Bench], seeds: Sequence[int], names: Sequence[str]) -> None:
    """These contestants, task by task and seed by seed."""
    for bench in benches:
        for seed in seeds:
            for name in names:
                bench.test(name, seed)


def results(
    benches: Sequence[Bench],
    code: Sequence[Bench],
    seeds: Sequence[int],
    labels: Mapping[str, str] = LABELS,
) -> learning_report.Results:
    """All learners and contestants, task by task and seed by seed."""
    play(benches, seeds, [*labels])
    peers = [name for name in PEERS if name in labels]
    played = [
        learning_report.Played(
            task=bench.task,
            trained=[bench.train(seed) for seed in seeds],
            optimised={name: [bench.learn(name, seed) for seed in seeds] for name in peers},
            tested={name: [bench.test(name, seed) for seed in seeds] for name in labels},
        )
        for bench in benches
    ]
    headroom = {bench.task: bench.headroom() for bench in code}
    return learning_report.Results(labels, played, headroom, benches[0].samples)


def plans(benches: Sequence[Bench], code: Sequence[Bench]) -> list[learning_cost.Plan]:
    """The configs whose costs say that of the whole table."""
    tasks = [
        learning_cost.Plan(bench.task, bench.training(0), bench.testing(0)) for bench in benches
    ]
    return [*tasks, *(learning_cost.Plan(b.task, None, b.testing(0, "dev")) for b in code)]


def _section(args: argparse.Namespace) -> str:
    """Other weights than the default model's have a section of their own, and so have code tasks
    alone, for they take as long as all others."""
    if args.provider == "local":
        return "learning_coder"
    return "learning_code" if set(args.tasks) <= set(CODE) else "learning"


def _command(args: argparse.Namespace) -> str:
    options = [f"--tasks {' '.join(args.tasks)}", f"--seeds {args.seeds}"]
    options += [f"--samples {args.samples}"]
    options += [f"--episodes {args.episodes}"] if args.episodes else []
    fewer = args.contestants != [*LABELS]
    options += [f"--contestants {' '.join(args.contestants)}"] if fewer else []
    options += ["--headroom"] if args.headroom else []
    options += [f"--provider {args.provider}"] if args.provider != "embedded" else []
    options += [f"--model {args.model}"] if args.model else []
    return " ".join(["python -m benchmarks.quality.learning", *options, "--write"])


if __name__ == "__main__":
    main()
