"""Programs of two agents in other frameworks, which learn without a line changed.

    python -m benchmarks.peers.programs_learn [--episodes N] [--folder DIR] [--only NAME] [--write]

Each program of benchmarks/peers/programs runs in an environment of its own, attached as
`orchestry attach` does it. Backend local learns by MAGRPO on train posts of `tldr`; then the team
plays the test posts, as it began and as it ended.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import page
from benchmarks.peers.overhead import PEERS, python_of
from benchmarks.problems import spread, written
from benchmarks.quality.local_learning import Notes
from benchmarks.stats import columns, done, interval
from orchestry.cli import group
from orchestry.core.config import validate
from orchestry.core.types import TASK_ERROR, Split
from orchestry.engine.evaluate import evaluate
from orchestry.engine.run import resume, train
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run, load_run
from orchestry.task.registry import load_task

PROGRAMS = {
    "plain_clients": "openai's client and anthropic's",
    "agents_sdk": "OpenAI Agents SDK",
    "langgraph_team": "LangGraph",
}
PLACE = PEERS / "programs"
SIZES: dict[Split, int] = {"train": 8, "dev": 1, "test": 10}
LEARN: dict[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "threads": 1,
    "group_size": 4,
    "every": 4,
    "learning_rate": 1e-3,
    "top_p": 1.0,
}
SAMPLING: dict[str, Any] = {"max_tokens": 64, "temperature": 0.8}
Trio = tuple[Run, Run, Run]
"""A run, and its team on the test problems before and after."""


def attach(folder: Path, name: str) -> None:
    """Writes the program's task, with posts of `tldr`."""
    if (folder / "tasks" / name).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    posts, task = folder / "posts.jsonl", load_task("tldr")
    problems = [p for split, n in SIZES.items() for p in spread(task.problems(split), n)]
    written(posts, problems)
    given = ["--problems", str(posts), "--agents", "writer,editor", "--dir", str(folder / "tasks")]
    command = [python_of("programs"), str(PLACE / f"{name}.py")]
    group.main(args=["attach", name, *given, "--", *command], standalone_mode=False)


def play(folder: Path, name: str, episodes: int) -> Trio:
    """A program of ours: from the start, or what is missing."""
    attach(folder, name)
    given = {"task": name, "task_path": [str(folder / "tasks")], "sampling": SAMPLING}
    return learned(folder / f"{name}-{episodes}", given | {"episodes": episodes})


def learned(place: Path, given: Mapping[str, Any]) -> Trio:
    """The run, and its team on the test problems, as it began and as it ended: from the start, or
    what is missing."""
    notes = Notes(place.name)
    config = {"backend": "local", "provider": {"model": "embedded"}, "learn": LEARN, **given}
    if not (place / "journal.jsonl").exists():
        run = train(validate(config), place, notes)
    elif not done(run := load_run(place)):
        run = resume(place, observer=notes)
    before, after = (evaluate(run, "test", observer=notes, update=which) for which in (0, None))
    return run, before, after


def rows(found: Mapping[str, Trio]) -> Iterator[dict[str, str]]:
    """The table."""
    for name, trio in found.items():
        lines = str(len((PLACE / f"{name}.py").read_text().splitlines()))
        yield {"program": PROGRAMS[name], "lines": lines, **figures(trio)}


def figures(trio: Trio) -> dict[str, str]:
    """What a run and its two evaluations came to."""
    run, before, after = trio
    fifth = max(1, len(run.episodes) // 5)
    tags = Counter(tag for e in run.episodes for n in e.nodes for tag in n.score.tags)
    return {
        "calls": f"{run.summary.calls:,}",
        "failed rollouts": str(tags[TASK_ERROR]),
        "first fifth": f"{_mean(run.episodes[:fifth]):.3f}",
        "last fifth": f"{_mean(run.episodes[-fifth:]):.3f}",
        "test, before": f"{_mean(before.episodes):.3f}",
        "test, after": f"{_mean(after.episodes):.3f}",
        "gain, 95 %": _gain(before, after),
        "minutes": f"{run.summary.seconds / 60:.0f}",
    }


def _mean(episodes: Sequence[EpisodeRecord]) -> float:
    return fmean(one.mean_leaf_reward for one in episodes)


def _gain(before: Run, after: Run) -> str:
    """Over the test posts, which both play with the same seeds."""
    pairs = zip(before.episodes, after.episodes, strict=True)
    gains = {a.problem: [b.mean_leaf_reward - a.mean_leaf_reward] for a, b in pairs}
    return interval(gains)


def main() -> None:
    """Plays what is missing, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-programs"))
    parser.add_argument("--only", choices=PROGRAMS, help="play that one")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    names = [args.only] if args.only else [*PROGRAMS]
    found = {name: play(args.folder.absolute(), name, args.episodes) for name in names}
    body = (
        "The programs are ours, written as the frameworks' own pages show it, and know nothing of "
        f"Orchestry but where their problem stands (versions: {_versions()}). A rollout is a "
        "process: a writer sums up a post, an editor improves it; reward: a last answer of at most "
        f"20 words, in the post's words. {args.episodes} episodes of {LEARN['group_size']} "
        "rollouts, the embedded model (135M), one seed, one thread. Test: posts not seen.\n\n"
        f"{columns([*rows(found)], figures=False)}"
    )
    if left := [what for name, what in PROGRAMS.items() if name not in found]:
        body += f"\n\nNot played yet: {', '.join(left)}."
    print(body)
    if args.write:
        only = f" --only {args.only}" if args.only else ""
        command = f"python -m benchmarks.peers.programs_learn --episodes {args.episodes}{only}"
        page.write("programs", f"{command} --write", body)


def _versions() -> str:
    return ", ".join((PEERS / "requirements-programs.txt").read_text().split())


if __name__ == "__main__":
    main()
