"""Whether two agents of one base learn to work together: a warm start, then MAGRPO.

For each seed: both agents' adapters are fine-tuned on the gold answers of generated train problems,
or with --teacher on the winners among what another model plays in these (`warm`; with --golds 0
there is none, and the untrained team learns). From there a run of backend local learns by MAGRPO
(`learned`) on train problems of other families, by their rewards alone; it is killed by SIGKILL
half-way, and resumed. Then the untrained, the warm and the learned team play test problems that
nobody has seen, generated ones and the own bank's; the untrained and the warm team also play them
as each baseline. What tests ask and what aux computes differ between train and test. The untrained
team plays once, for all seeds. The 135M model needs gold, since it solves 1 problem in 300.

    python -m benchmarks.quality.cooperation [--seeds N] [--first SEED] [--episodes N] [--golds N]
        [--test N] [--baselines NAME,...] [--model NAME] [--teacher NAME] [--rate R [--beside R]]
        [--folder DIR] [--only SEED] [--curve] [--write]

All lies in --folder, so that a cut-off benchmark goes on where it was; runs that this repository
keeps (benchmarks/kept) are taken from there. `--only SEED` plays one seed and prints nothing, so
that seeds can be played side by side, each with a core of its own; seed 0 plays the untrained team.
`--beside` adds a table of the seeds that were played at another learning rate.
`--curve` plays nothing: it tells how the runs went so far, and with --write writes that as the
section, and into configs/cooperation.yaml if it has that model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import kept, page
from benchmarks.problems import spread, written
from benchmarks.quality.cooperation_curve import curve, in_config
from benchmarks.quality.cooperation_plot import draw
from benchmarks.quality.cooperation_report import Played, by_rate, report
from benchmarks.quality.cooperation_swaps import Swaps, swapped
from benchmarks.stats import ended, played
from orchestry.core.config import validate
from orchestry.core.files import write_atomic
from orchestry.core.resolve import read_config_file
from orchestry.core.seeds import derive
from orchestry.core.types import Problem
from orchestry.engine.evaluate import play_measurement
from orchestry.engine.run import prepare, resume
from orchestry.engine.session import Silent
from orchestry.ext.distil.distil import distil
from orchestry.ext.distil.examples import How
from orchestry.store.checkpoints import CHECKPOINT, checkpoint, chosen_update
from orchestry.store.run import Run, load_run
from orchestry.task.arrangements import ALONE, ONE_MODEL
from orchestry.task.registry import load_task

TASK = "code_collaboration"
GRADES = "1-2"
"""What a 135M model can do at all; fixed before any training."""
BANK_SIZE = 2000
"""Generated problems for train; a quarter as many for test."""
SAMPLES = 4
"""Trajectories per test problem."""
MOST_SEEDS = 10
BASELINE_SAMPLES = 2
"""The same of a baseline."""
TEACHER = "teacher"
UNTRAINED, WARM, LEARNED = TEAMS = ("untrained", "warm", "learned")
EARLIER = {WARM: "its warm one", UNTRAINED: "an untrained one"}
"""Helpers of teams that have learned less, as the report names them."""
GENERATED, OWN = BANKS = ("generated", "own")
COLD, COLD_MODEL = "seeds_model", "qwen2.5-coder-1.5b"
"""The section of runs without a warm start, and its only model."""
GOLDS = "golds"
"""The train problems whose gold answers make the warm start."""
REWARDED = 6
"""No gold of one in so many of train's families makes the warm start: MAGRPO plays those, and what
problems they make with the other families. Where it knew the gold, half of its groups are equal."""
BASELINES = ("single", "fixed", "concat", "sequential", "discussion")
ASKED_FIXED = "for the whole program"
"""What `fixed` is asked for. Runs that were kept from before were asked for each half."""
LEARN: Mapping[str, Any] = {
    "group_size": 4,
    "every": 10,
    "evaluate_every": 10,
    "evaluate_problems": 40,
    "keep": 2,
}
POLL_S = 0.05
CONFIG = page.ROOT / "configs" / "cooperation.yaml"


@dataclass(frozen=True, slots=True)
class Way:
    """How a base is warmed up, and how it learns."""

    section: str
    """Of docs/benchmarks.md, and of the runs that are kept."""
    warm_up: How
    """Of fine-tuning; chosen on families of train that were left out of it."""
    adapters: Mapping[str, Any]
    rate: float
    max_tokens: int

    @property
    def learn(self) -> Mapping[str, Any]:
        """Of MAGRPO."""
        return {**self.adapters, **LEARN, "learning_rate": self.rate}

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Of all who play."""
        return {"max_tokens": self.max_tokens, "temperature": 0.8}


SMALL = Way(
    "cooperation",
    {"epochs": 1, "learning_rate": 1e-3},
    {"device": "cpu", "dtype": "bfloat16", "threads": 1},
    rate=2e-4,
    max_tokens=96,
)
CODER = Way(
    "coders",
    {"epochs": 2, "learning_rate": 3e-4},
    {"device": "cpu", "dtype": "bfloat16", "threads": 1},
    rate=1e-4,
    max_tokens=128,
)


class Notes(Silent):
    """What a run says goes to stderr, with its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def note(self, text: str) -> None:
        print(f"{self._name}: {text}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything lies, how long teams learn, and on how many problems."""

    folder: Path
    model: str = "embedded"
    episodes: int = 500
    golds: int = 1000
    test: int = 100
    baselines: tuple[str, ...] = BASELINES
    rate: float | None = None
    """The learning rate of MAGRPO; None: the base's own."""
    teacher: str | None = None
    """The embedded model whose winners make the warm start; None: gold answers make it."""

    @property
    def teams(self) -> tuple[str, ...]:
        """Who plays the tests; the last has learned from where the one before it stands."""
        return TEAMS if self.golds else (UNTRAINED, LEARNED)

    @property
    def section(self) -> str:
        """Of docs/benchmarks.md."""
        return self.way.section if self.golds else COLD

    @property
    def way(self) -> Way:
        """How this base learns."""
        own = CODER if "coder" in self.model.lower() else SMALL
        return own if self.rate is None else replace(own, rate=self.rate)

    def play(self, seed: int, teams: Sequence[str] | None = None) -> Played:
        """Everything of one seed: from the start, or what is missing."""
        teams = teams or self.teams
        run = self.learn(seed)
        tests = {(team, bank): self.measure(team, seed, bank) for team in teams for bank in BANKS}
        baselines = {
            (team, name): self.measure(team, seed, GENERATED, name)
            for team in teams
            if team != LEARNED
            for name in self.baselines
        }
        return Played(seed, run, tests, baselines)

    def there(self) -> Iterator[Played]:
        """The seeds whose run has ended, without baselines."""
        bare = replace(self, baselines=())
        for seed in range(MOST_SEEDS):
            if played(self.place(f"run-{seed}")):
                yield bare.play(seed)

    def learn(self, seed: int) -> Run:
        """MAGRPO from the warm start, in a process that is killed half-way; the rest is played
        here."""
        place = self.place(f"run-{seed}")
        if not (place / "journal.jsonl").exists():
            learn = self.way.learn
            updates = self.episodes // learn["every"]  # a short run is evaluated at its end
            learn = {**learn, "evaluate_every": min(learn["evaluate_every"], updates)}
            if self.golds:
                learn["from"] = str(self.warm(seed))
            own = {"episodes": self.episodes, "learn": learn}
            config = self.config(seed, self.bank(GENERATED)) | own
            self._killed(place, config)
        return played(place) or ended(resume(place, observer=Notes(f"run {seed}")))

    def warm(self, seed: int) -> Path:
        """The checkpoint that was fine-tuned on the train problems' gold, or on a teacher's
        winners in them."""
        place = self.place(f"warm-{seed}")
        if not place.exists():
            config = self.config(seed, self.bank(GOLDS)) | {"learn": dict(self.way.adapters)}
            how: How = {**self.way.warm_up, "gold": self.teacher is None}
            sources = [] if self.teacher is None else [self.taught(seed, self.teacher)]
            distil(sources, place, config=config, note=Notes(place.name).note, **how)
        return place / CHECKPOINT

    def taught(self, seed: int, teacher: str) -> Path:
        """What the teacher plays in the train problems of the warm start."""
        place, problems = self.place(f"teacher-{seed}"), self.bank(GOLDS)
        config = self.config(seed, problems) | {
            "backend": "api",
            "provider": {"name": "embedded", "model": teacher},
            "episodes": len(problems.read_text().splitlines()),
            "search": {"strategy": "chains", "k_samples": SAMPLES},
            "judge": {"enabled": False},
            "behaviors": {"enabled": False},
        }
        kept.to_its_end(config, place)
        return place

    def measure(self, team: str, seed: int, bank: str, baseline: str | None = None) -> Run:
        """A team on the test problems of a bank, as it is or as a baseline."""
        seed = 0 if team == UNTRAINED else seed
        name = "-".join([team, str(seed), bank, *([baseline] if baseline else [])])
        place = self.place(name, *([ASKED_FIXED] if baseline == "fixed" else []))
        if (run := played(place)) is not None:
            return run  # a kept run's team may have no checkpoint here
        start = self.start(team, seed)
        if baseline in ONE_MODEL and start is not None:
            start = self._alone(start, seed)
        samples = SAMPLES if baseline is None else BASELINE_SAMPLES
        learn = self.way.learn
        drawn = {key: value for key, value in learn.items() if not key.startswith("evaluate")}
        learn = {**drawn, "enabled": False, "group_size": samples}
        path = self.bank(bank)
        config = self.config(seed, path) | {
            "split": "test",
            "episodes": sum('"split":"test"' in line for line in path.read_text().splitlines()),
            "search": {"strategy": "chains", "k_samples": samples},
            "learn": learn if start is None else {**learn, "from": str(start)},
            "baseline": baseline,
        }
        plan = prepare(validate(config), held_out=True)
        return ended(play_measurement(plan, place, Notes(name)))

    def start(self, team: str, seed: int) -> Path | None:
        """The team's checkpoint; None: the untrained team has none."""
        if team == UNTRAINED:
            return None
        if team == WARM:
            return self.warm(seed)
        run = self.learn(seed)
        last = chosen_update(run, "best")
        assert last is not None, "a run of some updates has a last one"
        return checkpoint(run, last)

    def config(self, seed: int, bank: Path) -> dict[str, Any]:
        """What all plays of a seed have in common."""
        return {
            "backend": "local",
            "task": TASK,
            "options": {"bank": str(bank)},
            "seed": seed,
            "provider": {"model": self.model},
            "sampling": dict(self.way.sampling),
            "allow_unsafe_code": True,
        }

    def place(self, name: str, *more: str) -> Path:
        """The folder of a run; `more` is what it alone depends on."""
        return kept.place(self.folder, name, *self.settings(name.partition("-")[0]), *more)

    def settings(self, team: str) -> list[Any]:
        """All that a team's runs depend on besides the seed, as plain data."""
        problems = {one: self.bank(one).read_text().splitlines() for one in (GENERATED, GOLDS, OWN)}
        tests = [line for lines in problems.values() for line in lines if '"split":"test"' in line]
        way = self.way
        drawn = [self.model, SAMPLES, BASELINE_SAMPLES, way.sampling, way.adapters, tests]
        teacher = [] if self.teacher is None else [self.teacher]
        taught: list[Any] = [problems[GOLDS], *teacher]
        warm = [way.warm_up, *taught]
        learned = [*warm, self.episodes, way.learn, problems[GENERATED]]
        own: dict[str, list[Any]] = {UNTRAINED: [], WARM: warm, ALONE: warm, TEACHER: taught}
        return [*drawn, *own.get(team, learned)]

    def bank(self, name: str) -> Path:
        """A file with the problems: train for MAGRPO and test of the generated ones, train for the
        warm start, or the own bank's test split."""
        options = {"bank": OWN}
        if name != OWN:
            options = {"bank": GENERATED, "grade": GRADES, "size": str(BANK_SIZE)}
        task = load_task(TASK, options=options)
        if name == GOLDS:
            problems = spread([o for o in task.problems("train") if not _rewarded(o)], self.golds)
        else:
            problems = [*task.problems("test")][: self.test]
        if name == GENERATED:
            seen = [*task.problems("train"), *task.problems("dev")]
            problems = [*filter(_rewarded, seen), *problems]
        return written(self.folder / f"{name}-{len(problems)}.jsonl", problems)

    def _killed(self, place: Path, config: Mapping[str, Any]) -> None:
        """Begins the run in another process, and kills it once half of its episodes are played."""
        file = place.with_name(f"{place.name}.json")
        write_atomic(file, json.dumps(config).encode())
        command = [sys.executable, "-m", "orchestry", "run", "--config", str(file), "--trust"]
        with subprocess.Popen(
            [*command, "--run-dir", str(place)], cwd=page.ROOT, start_new_session=True
        ) as process:
            while process.poll() is None and _finished(place) < self.episodes // 2:
                time.sleep(POLL_S)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def _alone(self, start: Path, seed: int) -> Path:
        """A checkpoint whose one agent has the main programmer's adapter: it writes everything."""
        place = self.place(f"alone-{seed}")
        if not place.exists():
            shutil.copytree(start / "main", place / ALONE)
        return place


def _rewarded(problem: Problem) -> bool:
    """Whether MAGRPO plays a train problem: its part or its use is of a family without gold. A
    family is its gold code, whatever the numbers."""
    bodies = (problem.data[name].partition("\n")[2] for name in ("gold_aux", "gold_main"))
    return any(not derive("rewarded", re.sub(r"\d+", "", body)) % REWARDED for body in bodies)


def _finished(place: Path) -> int:
    """Episodes on disk so far."""
    file = place / "episodes.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def swaps_of(seeds: Sequence[Played], bank: Path) -> Swaps:
    """Each seed's learned main programmer with its own helper and with others, by problem over all
    seeds; `bank` is the file of the problems, which may have lain elsewhere when they were played.
    """
    found = defaultdict[str, defaultdict[str, list[float]]](lambda: defaultdict(list))
    teams = {team for team, _ in seeds[0].tests}
    for one in seeds:
        own = one.tests[LEARNED, GENERATED]
        others = [other.tests[LEARNED, GENERATED] for other in seeds if other is not one]
        helpers: list[tuple[str, Run | None]] = [
            ("its own", own),
            *(("another seed's", run) for run in others),
            *(
                (said, one.tests[team, GENERATED])
                for team, said in EARLIER.items()
                if team in teams
            ),
            ("a stub that returns None", None),
        ]
        for name, run in helpers:
            for problem, rewards in swapped(own, run, bank).items():
                found[name][problem] += rewards
    return found


def main() -> None:
    """Plays what is missing, then prints or writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--golds", type=int, default=1000, help="train problems of the warm start")
    parser.add_argument("--test", type=int, default=100, help="generated test problems")
    parser.add_argument("--baselines", default=",".join(BASELINES), metavar="NAME,...")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--teacher", help="an embedded model whose winners make the warm start")
    parser.add_argument("--rate", type=float, help="learning rate of MAGRPO")
    parser.add_argument("--beside", type=float, help="another one, of the seeds played at it")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-cooperation"))
    parser.add_argument("--only", type=int, metavar="SEED", help="play that seed")
    parser.add_argument("--curve", action="store_true", help="how the runs went so far")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    named = tuple(args.baselines.split(","))
    sizes = (args.episodes, args.golds, args.test)
    bench = Bench(args.folder.absolute(), args.model, *sizes, named, args.rate, args.teacher)
    section = bench.section
    if args.write and section == COLD and args.model != COLD_MODEL:
        parser.error(f"--golds 0 --write is for {COLD_MODEL}, whose section it writes")
    kept.restore(section, bench.folder)
    if args.only is not None:
        bench.play(args.only, bench.teams[args.only > 0 :])  # the untrained team plays once
        return
    if args.curve:
        places = [bench.place(f"run-{args.first + number}") for number in range(args.seeds)]
        runs = [load_run(place) for place in places if (place / "journal.jsonl").exists()]
        body = curve(runs)
        shipped = read_config_file(CONFIG)
        of_it = (shipped["provider"]["model"], shipped["learn"]["learning_rate"])
        if args.write and (args.model, bench.way.rate) == of_it:
            in_config(runs[0], CONFIG)
    else:
        seeds = [bench.play(args.first + number) for number in range(args.seeds)]
        body = report(seeds, swaps_of(seeds, bench.bank(GENERATED)))
        if args.beside:
            body += f"\n\n{by_rate([*seeds, *replace(bench, rate=args.beside).there()])}"
        if args.write:
            plot = page.ROOT / "docs" / f"{section}.svg"
            tests = {team: [one.tests[team, GENERATED] for one in seeds] for team in bench.teams}
            draw([one.run for one in seeds], tests, plot)
            body = f"![What the team learned, and what it does on test]({plot.name})\n\n{body}"
    print(body)
    if args.write:
        seeded = f"--seeds {args.seeds} --first {args.first}"
        told = f"{seeded} --episodes {args.episodes} --golds {args.golds} --test {args.test}"
        command = f"python -m benchmarks.quality.cooperation {told} --baselines {args.baselines}"
        if args.model != "embedded":
            command += f" --model {args.model}"
        if args.teacher:
            command += f" --teacher {args.teacher}"
        if args.rate:
            command += f" --rate {args.rate:g}"
        if args.beside:
            command += f" --beside {args.beside:g}"
        if args.curve:
            command += " --curve"
        page.write(section, f"{command} --write", f"{body}\n\n{kept.revisions(bench.folder, '*')}")


if __name__ == "__main__":
    main()
