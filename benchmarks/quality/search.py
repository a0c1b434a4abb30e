"""Beam search against best-of-n at equal calls and against one sample, on the embedded model.

Every problem of code_review's test split is played once a seed and strategy; rewards are the
task's own, decided by executed tests. Strategies share a seed, and so the samples that they have
in common (the same agent in the same state), which narrows the differences. Runs lie in --folder,
so that a cut-off benchmark goes on where it was. Intervals are bootstraps over problems, each with
all its seeds.

    python -m benchmarks.quality.search [--seeds N] [--folder DIR] [--problems N] [--write]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.stats import Rows, bounds, columns, difference, interval, mean, tabulate
from orchestry.core.config import validate
from orchestry.engine.run import resume, train
from orchestry.report.text import table
from orchestry.store.run import Run
from orchestry.task.registry import load_task

STRATEGIES = {
    "beam": "beam (k=4, W=2)",
    "best_of_n": "best of n, at least as many calls",
    "single": "one sample",
}
MAX_TOKENS = 160


def main() -> None:
    """Plays what is missing, then prints or writes the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--problems", type=int, help="only the first N episodes of each run")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark-search"))
    parser.add_argument("--only", choices=[*STRATEGIES], help="play one strategy, report nothing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    whole = len(load_task("code_review").problems("test"))
    episodes = args.problems or whole
    if args.only:
        for seed in range(args.seeds):
            play(args.folder, args.only, seed, episodes)
        return
    runs = {
        strategy: [play(args.folder, strategy, seed, episodes) for seed in range(args.seeds)]
        for strategy in STRATEGIES
    }
    body = report(runs, episodes)
    options = [f"--seeds {args.seeds}", *([f"--problems {episodes}"] if args.problems else [])]
    print(body)
    if args.write:
        page.write(
            "search", " ".join(["python -m benchmarks.quality.search", *options, "--write"]), body
        )


def play(folder: Path, strategy: str, seed: int, episodes: int) -> Run:
    """One strategy on the test split with one seed, or the rest of it."""
    place = folder / f"{strategy}-{seed}"
    if (place / "journal.jsonl").exists():
        return resume(place, {"episodes": episodes})
    config: dict[str, Any] = {
        "task": "code_review",
        "split": "test",
        "episodes": episodes,
        "seed": seed,
        "provider": {"name": "embedded"},
        "sampling": {"max_tokens": MAX_TOKENS},
        "search": {"strategy": strategy, "k_samples": 4, "beam_width": 2, "concurrency": 8},
        "cache": {"dir": str(folder / "answers")},  # strategies share the samples they share
        "allow_unsafe_code": True,
    }
    return train(validate(config), place)


def report(runs: dict[str, list[Run]], episodes: int) -> str:
    """The section's body: a row a strategy, and the paired differences."""
    seeds = len(runs["beam"])
    reward = tabulate(runs, episodes, lambda e: e.reward)
    solved = tabulate(runs, episodes, lambda e: float("solved" in e.best_node.score.tags))
    calls = tabulate(runs, episodes, lambda e: float(e.calls))
    tokens = tabulate(runs, episodes, lambda e: float(e.output_tokens))
    strategies = [
        {
            "strategy": label,
            "calls per problem": f"{mean(calls[strategy]):.1f}",
            "output tokens per problem": f"{mean(tokens[strategy]):,.0f}",
            "reward": interval(reward[strategy]),
            "solved": interval(solved[strategy]),
        }
        for strategy, label in STRATEGIES.items()
    ]
    gains = [
        [
            f"beam less {STRATEGIES[other]}",
            *(interval(difference(arms["beam"], arms[other])) for arms in (reward, solved)),
        ]
        for other in ("best_of_n", "single")
    ]
    return (
        f"{episodes} problems of the test split, in seeded order, {seeds} seed"
        f"{'s' * (seeds > 1)}, embedded "
        f"SmolLM2-135M, at most {MAX_TOKENS} tokens per answer. The reward is that of the best "
        "trajectory found, the tests decide which; mean and 95 % bootstrap interval over problems."
        f"\n\n{columns(strategies)}\n\n"
        f"{table(['paired difference', 'reward', 'solved'], gains)}\n\n"
        f"{verdict(difference(reward['beam'], reward['best_of_n']))}"
    )


def verdict(gain: Rows) -> str:
    """What the interval against best-of-n allows to say."""
    low, high = bounds(gain)
    if low > 0:
        return "At equal calls the beam finds better trajectories than best-of-n."
    if high < 0:
        return "At equal calls the beam finds worse trajectories than best-of-n."
    return "At equal calls this does not tell the beam from best-of-n: a null result."


if __name__ == "__main__":
    main()
