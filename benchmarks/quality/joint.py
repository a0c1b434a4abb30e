"""Whether prompts and weights that are learned together beat either alone; and expert iteration.

Recipes of the stages p (`prompts`: behaviours) and w (`magrpo`: weights) learn on tldr and arxiv,
each from the same untrained adapters, whose model runs here for every stage. All of them draw
equally many trajectories in training, trials of behaviours included: a recipe of more stages gets
fewer episodes per stage. Every final team then plays the test problems, as does a control that
learned nothing; of the control's many trajectories per problem, the best are best-of-n at equal
calls. On tldr, `expert` (`search+distil`, some rounds) is measured after each round, beside MAGRPO
at equal samples (w) and at equal CPU time (w-cpu).

    python -m benchmarks.quality.joint [--tasks NAME ...] [--seeds N] [--episodes N] [--rounds N]
        [--train N] [--test N] [--model NAME] [--folder DIR] [--only TASK RECIPE SEED] [--write]

All lies in --folder, so that a cut-off benchmark goes on where it was; runs that this repository
keeps (benchmarks/kept) are taken from there. `--only tldr p+w 0` plays one recipe (control, p, w,
p+w, w+p, p+w+p, expert, w-cpu) and prints nothing, so that they can be played side by side, each
with a core of its own. The control of a task and seed comes first, since it makes the files that
all share; w-cpu comes last, since it needs the CPU times of expert and w.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import kept, page
from benchmarks.problems import spread, written
from benchmarks.quality.joint_budget import (
    EXPERT,
    GROUP,
    MATCHED,
    RECIPES,
    TRIALS,
    Share,
    best_of,
    matched,
    shares,
)
from benchmarks.quality.joint_report import CONTROL, Played, report
from benchmarks.quality.local_learning import Notes, timed
from benchmarks.stats import done, ended, played
from orchestry.core.config import validate
from orchestry.core.files import json_lines
from orchestry.engine.evaluate import play_measurement
from orchestry.engine.run import prepare, resume, train
from orchestry.ext.recipes.recipes import Team, team_after
from orchestry.store.checkpoints import checkpoint, chosen_update
from orchestry.store.recipes import Stage, stages_of
from orchestry.store.run import Run, load_run
from orchestry.task.registry import load_task

TASKS = {"tldr": 96, "arxiv": 48}
"""By task, the budget in episodes of a recipe without trials."""
SAMPLES = 8
"""Trajectories per test problem of a team that learned."""
ADAPTERS: Mapping[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "threads": 1,
    "top_p": 1.0,
}
RATE = 1e-3
"""Of MAGRPO, as in benchmarks.quality.local_learning, where it was chosen on train problems."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything lies, and its sizes."""

    folder: Path
    model: str = "embedded"
    episodes: int = 96
    """The budget of a recipe without trials."""
    rounds: int = 3
    train: int = 16
    dev: int = 12
    test: int = 20

    def play(self, task: str, recipe: str, seed: int) -> Played:
        """A recipe and its teams on the test problems: from the start, or what is missing."""
        if recipe == CONTROL:
            n = max(SAMPLES, best_of(self.episodes, self.count(task)))
            untrained = partial(self.team, task, seed, ())
            return Played((), (self.measure(task, seed, f"{CONTROL}-{seed}", untrained, n),))
        episodes = self.matched(task, seed) if recipe == MATCHED else self.episodes
        place = self.place(task, recipe, seed, episodes)
        stages, cpu_s = self.learn(task, recipe, seed, episodes)
        tests = tuple(
            self.measure(task, seed, f"{place.name}-{number}".partition("-")[2], team, SAMPLES)
            for number, team in self.teams(task, recipe, seed, stages)
        )
        return Played(tuple(load_run(one.folder) for one in stages), tests, cpu_s, episodes)

    def learn(
        self, task: str, recipe: str, seed: int, episodes: int
    ) -> tuple[tuple[Stage, ...], float]:
        """The stages of a recipe, all of them played, and the CPU seconds that they took."""
        place = self.place(task, recipe, seed, episodes)
        parts = shares(recipe, episodes, self.rounds)
        stages = stages_of(place, tuple(one.step for one in parts))
        times, notes = place.with_name(f"{place.name}.times.jsonl"), Notes(place.name)
        if not _played(stages):
            with timed(times):
                if (place / "config.yaml").exists():
                    resume(place, observer=notes)
                else:
                    config = self.config(task, seed, parts)
                    config["learn"] = {**ADAPTERS, "from": str(self.start(task, seed))}
                    train(validate(config), place, notes)
            if not _played(stages):
                raise SystemExit(f"{place} stopped before its end: the same command goes on")
        spent = [json.loads(line)["cpu_s"] for _, line in json_lines(times.read_bytes())]
        return stages, sum(spent)

    def teams(
        self, task: str, recipe: str, seed: int, stages: tuple[Stage, ...]
    ) -> Iterator[tuple[int, Callable[[], Team]]]:
        """The teams to be measured, by the number of their last stage: of expert iteration one
        per round, else the final one."""
        for stage in stages:
            if stage.number == len(stages) or (recipe == EXPERT and stage.step == "distil"):
                yield stage.number, partial(self.team, task, seed, stages[: stage.number])

    def team(self, task: str, seed: int, stages: tuple[Stage, ...]) -> Team:
        """What these stages made of the untrained team."""
        found = Team(self.start(task, seed))
        for stage in stages:
            found = team_after(stage, found)
        return found

    def start(self, task: str, seed: int) -> Path:
        """The untrained adapters that all recipes of a seed begin with: a run without a learning
        rate."""
        learn = {**ADAPTERS, "learning_rate": 0.0, "group_size": 2, "every": 1}
        config = self.common(task, seed) | {"backend": "local", "episodes": 1, "learn": learn}
        place = self.named(task, f"start-{seed}", config)
        if not (place / "journal.jsonl").exists():
            train(validate(config), place, Notes(place.name))
        elif not done(load_run(place)):
            resume(place, observer=Notes(place.name))
        run = ended(load_run(place))
        last = chosen_update(run, None)
        assert last is not None, "a run of one episode has an update"
        return checkpoint(run, last)

    def measure(
        self, task: str, seed: int, name: str, team_of: Callable[[], Team], samples: int
    ) -> Run:
        """A team on the test problems, drawn by backend local whatever it learned with."""
        place = self.named(task, f"test-{name}", self.common(task, seed) | {"samples": samples})
        if (run := played(place)) is not None:
            return run  # a kept run's team may have no checkpoint here
        team = team_of()
        learn = {**ADAPTERS, "enabled": False, "group_size": samples, "from": str(team.weights)}
        config = self.common(task, seed) | {
            "backend": "local",
            "split": "test",
            "episodes": self.count(task),
            "learn": learn,
            "behaviors": {"from": team.library and str(team.library)},
        }
        plan = prepare(validate(config), held_out=True)
        return ended(play_measurement(plan, place, Notes(place.name)))

    def matched(self, task: str, seed: int) -> int:
        """The episodes of MAGRPO that take expert iteration's CPU time."""
        _, theirs = self.learn(task, EXPERT, seed, self.episodes)
        _, ours = self.learn(task, "w", seed, self.episodes)
        return matched(self.episodes, ours, theirs)

    def config(self, task: str, seed: int, parts: list[Share]) -> dict[str, Any]:
        """A recipe, as plain data, without the team that it begins with."""
        stages: dict[str, dict[str, Any]] = {}
        for number, one in enumerate(parts, 1):
            if one.step == "distil":
                continue
            own = stages[str(number)] = {"episodes": one.episodes}
            if one.step == "prompts":
                own["behaviors"] = {"every": one.every, "share": float(TRIALS)}
            if one.step == "magrpo":
                own["learn"] = {"group_size": GROUP, "every": one.every, "learning_rate": RATE}
        return self.common(task, seed) | {
            "search": {"strategy": "chains", "k_samples": GROUP},
            "credit": {"share": 0.0},  # credits from the samples that are there: no call more
            "recipe": {"steps": [one.step for one in parts], "samples": 0, "stages": stages},
        }

    def common(self, task: str, seed: int) -> dict[str, Any]:
        """What all plays of a seed have in common."""
        return {
            "task": task,
            "options": {"path": str(self.bank(task))},
            "seed": seed,
            "provider": {"model": self.model},
            "sampling": {"max_tokens": 64, "temperature": 0.8},
            "cache": {"enabled": False},
        }

    def count(self, task: str) -> int:
        """Test problems."""
        return min(self.test, len(load_task(task).problems("test")))

    def bank(self, task: str) -> Path:
        """A file with the problems: some of train and dev, evenly spread, and those of test."""
        whole = load_task(task)
        problems = [
            *spread(whole.problems("train"), self.train),
            *spread(whole.problems("dev"), self.dev),
            *[*whole.problems("test")][: self.test],
        ]
        name = f"{task}-{self.train}-{self.dev}-{self.test}.jsonl"
        return written(self.folder / name, problems)

    def place(self, task: str, recipe: str, seed: int, episodes: int) -> Path:
        """The folder of a recipe."""
        plain = self.config(task, seed, shares(recipe, episodes, self.rounds))
        return self.named(task, f"{recipe}-{seed}", plain | {"learn": dict(ADAPTERS)})

    def named(self, task: str, name: str, config: Mapping[str, Any]) -> Path:
        """The folder of that name and config."""
        plain = {**config, "options": self.bank(task).name}
        return kept.place(self.folder, f"{task}-{name}", plain)


def _played(stages: tuple[Stage, ...]) -> bool:
    """Whether all stages have come to their ends; a distillation has no summary that says so."""
    return all(one.begun and one.done(load_run(one.folder).events) for one in stages)


def recipes_of(task: str) -> tuple[str, ...]:
    """All that is played on a task, in the order of the tables."""
    more = (EXPERT, MATCHED) if task == "tldr" else ()
    return (CONTROL, *RECIPES, *more)


def main() -> None:
    """Plays what is missing, then prints or writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, help="budget: a multiple of 12; else the task's")
    parser.add_argument("--rounds", type=int, default=3, help="of expert iteration")
    parser.add_argument("--train", type=int, default=16, help="train problems")
    parser.add_argument("--test", type=int, default=20, help="test problems")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-joint"))
    parser.add_argument("--only", nargs=3, metavar=("TASK", "RECIPE", "SEED"), help="play that one")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in ("rounds", "train", "test")}
    benches = {
        task: Bench(args.folder.absolute(), args.model, args.episodes or TASKS[task], **sizes)
        for task in TASKS
    }
    try:
        for task, bench in benches.items():
            for recipe in recipes_of(task)[1:]:
                shares(recipe, bench.episodes, bench.rounds)
    except ValueError as error:
        parser.error(str(error))
    kept.restore("joint", args.folder.absolute())
    if args.only:
        task, recipe, seed = args.only
        if task not in TASKS or recipe not in recipes_of(task):
            known = f"{', '.join(TASKS)}; of {task}: {', '.join(recipes_of(task))}"
            parser.error(f"--only {task} {recipe}: known tasks are {known}")
        benches[task].play(task, recipe, int(seed))
        return
    found = {
        task: {
            recipe: [benches[task].play(task, recipe, seed) for seed in range(args.seeds)]
            for recipe in recipes_of(task)
        }
        for task in args.tasks
    }
    body = report(found)
    print(body)
    if args.write:
        if args.episodes:
            sizes["episodes"] = args.episodes
        given = " ".join(f"--{name} {value}" for name, value in sizes.items())
        tasks = " ".join(args.tasks)
        command = f"python -m benchmarks.quality.joint --tasks {tasks} --seeds {args.seeds} {given}"
        places = kept.revisions(args.folder.absolute(), *(f"{task}-*" for task in args.tasks))
        page.write("joint", f"{command} --write", f"{body}\n\n{places}")


if __name__ == "__main__":
    main()
