"""What changes of a prompt are worth to the embedded model: the headroom of every learner.

The team of tldr plays all dev problems with one change after another: an example, in the system
prompt or as a turn of the chat; a phrase less; prompts written by hand. Each is compared with the
task's own prompts on the same problems and seeds. Whatever a learner proposes is of these kinds, so
where nothing here gains, there is little to be learned from prompts. With `--team RUN` a team plays
whose weights were learned in that run of backend local, such as the stage of a recipe w
(`python -m benchmarks.quality.joint --only tldr w 0`).

    python -m benchmarks.quality.prompt_changes [--team RUN] [--seeds N] [--folder DIR] [--write]

Runs lie in --folder, so that a cut-off benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import page
from benchmarks.quality.learning import TOKENS
from benchmarks.stats import Rows, columns, crossed, difference, done
from orchestry.core.config import validate
from orchestry.core.types import Example, Problem
from orchestry.engine.run import resume, train
from orchestry.report.stats import Interval
from orchestry.store.run import Run, load_run
from orchestry.task.base import BaseTask
from orchestry.task.registry import load_task

TASK = "tldr"
CONCISE, DETAILED = "concise", "detailed"
BOTH = (CONCISE, DETAILED)
PHRASES = (
    (CONCISE, ", in your own words"),
    (CONCISE, ", objective"),
    (CONCISE, " in one short sentence"),
    (DETAILED, ", in your own words"),
    (DETAILED, ", objective"),
    (DETAILED, ", joined by words such as because, however and then"),
)
"""What is left out, and of whose prompt."""
BY_HAND = {
    "plain": {
        CONCISE: "Summarize the text in one sentence.",
        DETAILED: "Summarize the text in three sentences. Use because, however and then.",
    },
    "as steps": {
        CONCISE: "Write one short sentence that says what happened in the text.",
        DETAILED: "Summarize the text in three sentences, in your own words. First say what "
        "happened, then why, and then how it ended. Use because, however and then.",
    },
    "concise: at most 20 words": {
        CONCISE: "Provide a concise, objective summary of the input text in one short sentence of "
        "at most 20 words, in your own words.",
    },
    "concise: a title": {
        CONCISE: "Provide a concise, objective title for the input text, in your own words.",
    },
    "concise: said twice": {
        CONCISE: "Provide a very concise, objective summary of the input text in only one very "
        "short sentence, in your own words.",
    },
    "concise: what it is about": {
        CONCISE: "In one short sentence, say what the input text is about.",
    },
    "concise: as GEPA had it written": {
        CONCISE: "You're an AI assistant for text re-writing. Rewrite the input text to make it "
        "more concise while preserving its core meaning.",
    },
    "detailed: more sentences": {
        DETAILED: "Provide a detailed, objective summary of the input text in four or five "
        "sentences, in your own words, joined by words such as because, however and then.",
    },
}
"""Prompts by role, as a person would try them; and one that GEPA ended with (learning.py)."""

Agents = Mapping[str, Mapping[str, Any]]
"""By role what a config says of it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the team's prompts."""

    kind: str
    what: str
    agents: Agents


def changes(task: BaseTask[Any]) -> list[Change]:
    """All that are tried."""
    own = {spec.role: spec.system_prompt for spec in task.agents}
    short, middle = _shortest(task)
    shots = {role: _shot(task, short, role) for role in BOTH}
    others = {role: _shot(task, middle, role) for role in BOTH}
    return [
        Change("example in the system prompt", "both agents", _told(own, shots)),
        *(
            Change("example as a turn", who, {role: {"examples": [shots[role]]} for role in roles})
            for who, roles in (("both agents", BOTH), (CONCISE, [CONCISE]), (DETAILED, [DETAILED]))
        ),
        Change(
            "example as a turn",
            "another one",
            {r: {"examples": [shot]} for r, shot in others.items()},
        ),
        Change(
            "two examples as turns",
            "both agents",
            {role: {"examples": [shots[role], others[role]]} for role in BOTH},
        ),
        *(
            Change("a phrase less", f"{role}: `{phrase.strip(', ')}`", _less(own, role, phrase))
            for role, phrase in PHRASES
        ),
        *(
            Change("by hand", name, {role: {"system_prompt": text} for role, text in said.items()})
            for name, said in BY_HAND.items()
        ),
    ]


def _shortest(task: BaseTask[Any]) -> tuple[Problem, Problem]:
    """The shortest train problem with a gold answer, and the one of middle length."""
    gold = [problem for problem in task.problems("train") if task.gold(problem)]
    gold.sort(key=lambda problem: len(problem.prompt))
    return gold[0], gold[len(gold) // 2]


def _shot(task: BaseTask[Any], problem: Problem, role: str) -> dict[str, str]:
    gold = task.gold(problem)
    assert gold is not None, "chosen for it"
    asked = task.observe(task.reset(problem, 0), role)
    return Example(asked=asked, answered=gold[role]).model_dump()


def _told(own: Mapping[str, str], shots: Mapping[str, Mapping[str, str]]) -> Agents:
    """Each prompt, and the example as a part of its text."""
    text = "{}\n\nExample\n\nAsked:\n{asked}\n\nAnswered:\n{answered}"
    return {role: {"system_prompt": text.format(own[role], **shot)} for role, shot in shots.items()}


def _less(own: Mapping[str, str], role: str, phrase: str) -> Agents:
    assert phrase in own[role], f"the prompt of {role} has no {phrase!r}"
    return {role: {"system_prompt": own[role].replace(phrase, "")}}


def play(folder: Path, agents: Agents, seed: int, provider: str = "embedded") -> Run:
    """The team with these agents on all dev problems, one sample each."""
    config = validate(
        {
            "task": TASK,
            "split": "dev",
            "seed": seed,
            "episodes": len(load_task(TASK).problems("dev")),
            "provider": {"name": provider},
            "sampling": {"max_tokens": TOKENS[TASK]},
            "search": {"strategy": "chains", "k_samples": 1},
            "judge": {"enabled": False},
            "behaviors": {"enabled": False},
            "agents": agents,
        }
    )
    if not (folder / "journal.jsonl").exists():
        return train(config, folder)
    run = load_run(folder)
    return run if done(run) else resume(folder)


def averaged(runs: Sequence[Run]) -> Rows:
    """By problem, its mean reward in each run. A learned team's run may bring fewer problems."""
    found: Rows = {}
    for run in runs:
        visits = defaultdict[str, list[float]](list)
        for episode in run.episodes:
            visits[episode.problem].append(episode.reward)
        for problem, rewards in visits.items():
            found.setdefault(problem, []).append(fmean(rewards))
    return found


def row(change: Change, reward: float, gain: Interval) -> dict[str, str]:
    """A row of the table; gains are in points."""
    low, middle, high = (f"{100 * end:+.1f}" for end in (gain.low, gain.mean, gain.high))
    return {
        "change": change.kind,
        "of": change.what,
        "reward": f"{reward:.3f}",
        "gain": f"{middle} [{low}, {high}]",
    }


def report(folder: Path, seeds: int, provider: str = "embedded") -> str:
    """Plays what is missing, and tells what each change is worth."""
    tried = [Change("none", "the task's own prompts", {}), *changes(load_task(TASK))]
    runs = {
        str(place): [
            play(folder / f"{place}-{seed}", change.agents, seed, provider) for seed in range(seeds)
        ]
        for place, change in enumerate(tried)
    }
    rewards = {arm: averaged(found) for arm, found in runs.items()}
    gains = [crossed(difference(rewards[arm], rewards["0"])) for arm in rewards]
    rows = [
        row(change, crossed(rewards[arm]).mean, gain)
        for change, arm, gain in zip(tried, rewards, gains, strict=True)
    ]
    rows[0]["gain"] = ""
    better = sum(gain.low > 0.0 for gain in gains)
    worse = sum(gain.high < 0.0 for gain in gains)
    return "\n\n".join(
        [
            f"Embedded model{' with learned weights' * (provider != 'embedded')}, {TASK}, "
            f"{len(rewards['0'])} problems of dev, {seeds} seeds, {len(runs['0'][0].episodes)} "
            "samples per seed. Gains are in points over the task's own prompts on the same "
            "problems and seeds, with 95 % bootstrap intervals over both. Examples are gold "
            "answers of train.",
            columns(rows, figures=False),
            f"Of {len(tried) - 1} changes, {better} are better than the task's own prompts and "
            f"{worse} are worse, by intervals that exclude 0.",
        ]
    )


def main() -> None:
    """Prints or writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--team", type=Path, metavar="RUN", help="a team with learned weights")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-prompt-changes"))
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    if args.team:
        body = report(args.folder / args.team.name, args.seeds, f"local:{args.team.absolute()}")
        section, team = "prompt_changes_learned", f"--team {args.team} "
    else:
        body, section, team = report(args.folder, args.seeds), "prompt_changes", ""
    print(body)
    if args.write:
        command = f"python -m benchmarks.quality.prompt_changes {team}--seeds {args.seeds} --write"
        page.write(section, command, body)


if __name__ == "__main__":
    main()
