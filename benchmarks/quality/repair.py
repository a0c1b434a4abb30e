"""What a team of 135M models learns of tools: the task `repair`, whose coder must read and edit.

    python -m benchmarks.quality.repair [--episodes N] [--samples N] [--folder DIR] [--write]

The untrained embedded model never calls a tool, so trying alone teaches it nothing. First each
agent's adapter learns the train problems' gold moves (`distil --gold`), then backend local goes on
by MAGRPO from there. All three teams play the test problems on the same seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import page
from benchmarks.quality.local_learning import Notes
from benchmarks.stats import columns, done, ended, interval
from orchestry.core.config import validate
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import resume, train
from orchestry.ext.distil.distil import distil
from orchestry.store.run import Run, load_run
from orchestry.task.registry import load_task

EPOCHS = 2
LEARN: Mapping[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "threads": 1,
    "group_size": 4,
    "every": 4,
    "learning_rate": 3e-4,
}
TEAM: Mapping[str, Any] = {
    "task": "repair",
    "provider": {"model": "embedded"},
    "sampling": {"max_tokens": 192},
}
UNTRAINED, TAUGHT, LEARNED = "untrained", "taught by gold", "then MAGRPO"


def teams(folder: Path, episodes: int, samples: int) -> Iterator[tuple[str, Run]]:
    """Each team on the test problems: from the start, or what is missing."""
    notes = Notes("repair")
    if not (folder / "taught" / "journal.jsonl").exists():
        warm = {**TEAM, "learn": {key: LEARN[key] for key in ("device", "dtype", "threads")}}
        distil(config=warm, into=folder / "taught", gold=True, epochs=EPOCHS, note=notes.note)
    taught = load_run(folder / "taught")
    for name, update in ((UNTRAINED, 0), (TAUGHT, None)):
        played = evaluate(taught, "test", observer=notes, update=update, samples=samples)
        yield name, ended(played)
    learn = {**LEARN, "from": str(taught.folder / "checkpoints" / "000001")}
    place, config = folder / f"magrpo-{episodes}", {**TEAM, "backend": "local", "learn": learn}
    if not (place / "journal.jsonl").exists():
        run = train(validate({**config, "episodes": episodes}), place, notes)
    elif not done(run := load_run(place)):
        run = resume(place, observer=notes)
    yield LEARNED, ended(evaluate(ended(run), "test", observer=notes, samples=samples))


def row(name: str, run: Run) -> dict[str, str]:
    """What a team did with its tools, and what it earned."""
    leaves = [leaf for record in run.episodes for leaf in record.leaves()]
    turns = [turn for record in run.episodes for node in record.nodes for turn in node.turns]
    moves = [turn.completion for turn in turns if turn.agent == "coder"]
    results = [result for one in moves for step in one.steps for result in step.results]
    wrong = sum(one.startswith("error:") for one in results)
    rewards = {record.problem: [record.mean_leaf_reward] for record in run.episodes}
    return {
        "team": name,
        "moves of the coder with a call": f"{fmean(bool(move.steps) for move in moves):.0%}",
        "calls": str(len(results)),
        "refused": f"{wrong / len(results):.0%}" if results else "-",
        "edited": f"{fmean('edited' in leaf.score.tags for leaf in leaves):.0%}",
        "solved": f"{fmean('solved' in leaf.score.tags for leaf in leaves):.0%}",
        "reward, 95 %": interval(rewards),
        **by_grade(run),
    }


def by_grade(run: Run) -> dict[str, str]:
    """Mean reward by the problems' grade."""
    found: dict[str, list[float]] = {}
    grades = {one.id: one.data["grade"] for one in load_task("repair").problems("test")}
    for record in run.episodes:
        found.setdefault(f"grade {grades[record.problem]}", []).append(record.mean_leaf_reward)
    return {grade: f"{fmean(found[grade]):.2f}" for grade in sorted(found)}


def told(episodes: int, samples: int) -> str:
    """What was played."""
    train_, test = (len(load_task("repair").problems(split)) for split in ("train", "test"))
    return (
        f"The embedded 135M model, bfloat16, one seed. `{TAUGHT}`: at most {EPOCHS} epochs over "
        f"the gold moves of the {train_} train problems, an example per answer. `{LEARNED}`: from "
        f"there, {episodes} train episodes of {LEARN['group_size']} samples, learning rate "
        f"{LEARN['learning_rate']:g}. Test: {test} problems, {samples} samples each, whose parts "
        "no train problem has. `refused`: the share of the coder's calls whose result is an error."
    )


def main() -> None:
    """Plays what is missing, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-repair"))
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    found = [
        row(name, run) for name, run in teams(args.folder.absolute(), args.episodes, args.samples)
    ]
    body = f"{told(args.episodes, args.samples)}\n\n{columns(found, figures=False)}"
    print(body)
    if args.write:
        given = f"--episodes {args.episodes} --samples {args.samples}"
        command = f"python -m benchmarks.quality.repair {given} --write"
        page.write("repair", command, body)


if __name__ == "__main__":
    main()
