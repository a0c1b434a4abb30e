"""What PPO earns in every scenario of Bucket Brigade, beside scripted teams in the same games.

    python -m benchmarks.quality.bucket_ppo [--only SCENARIO SEED] [--seeds N] [--steps N]
        [--folder DIR] [--write]

A run of `orchestry run --backend ppo` per scenario and seed, with the defaults of `ppo.*`; then the
learned team plays games that it has not seen. A finished run is a line of
benchmarks/kept/bucket_ppo.jsonl and is not played again, so runs may be spread over days and cores
with --only. Lines of other settings or rules do not count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import fmean, harmonic_mean
from typing import Any

from benchmarks import page
from benchmarks.kept import KEPT, keep_line, kept_lines, span, to_its_end
from benchmarks.peers.bucket_speed import module
from benchmarks.quality.bucket_teams import ARCHETYPES, COMMON
from benchmarks.stats import columns, over_seeds
from orchestry.core.config import validate
from orchestry.engine.neural import LEARNED, LIKELIEST, UNTRAINED, measure
from orchestry.store.progress import progress
from orchestry.task.registry import load_task
from orchestry.task.setup import task_digests

FILE = KEPT / "bucket_ppo.jsonl"
GAMES = 1000
LEARNS = (
    *("steps", "games", "horizon", "passes", "minibatch", "learning_rate", "anneal", "discount"),
    *("trace", "clip", "value_clip", "entropy", "value", "norm", "hidden", "normalise", "scale"),
    *("reward", "policies", "critic"),
)
"""Keys of `ppo.*` that results depend on."""
CURVE = 20
"""Points of a learning curve that are kept."""

Line = Mapping[str, Any]


def config(scenario: str, seed: int, steps: int) -> dict[str, Any]:
    """Of a run."""
    return {
        "backend": "ppo",
        "task": "bucket_brigade",
        "options": {"scenario": scenario},
        "seed": seed,
        "ppo": {"steps": steps, "device": "cpu", "checkpoint_every": 2_000_000},
    }


def settings(scenario: str, steps: int) -> str:
    """A digest of all that a result depends on besides the seed."""
    whole = validate(config(scenario, 0, steps)).ppo.model_dump(mode="json")
    plain = {name: whole[name] for name in LEARNS}
    digests = task_digests(load_task("bucket_brigade"))
    rules = {name: digests[f"task/{name}.py"] for name in ("kernel", "game", "experts")}
    numbers = module("scenario").scenario(scenario, {}).model_dump(mode="json", exclude={"about"})
    text = json.dumps([plain, rules, numbers, GAMES], sort_keys=True)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def known(steps: int) -> dict[tuple[str, int], Line]:
    """The kept results of these settings."""
    found = kept_lines(FILE)
    fits = {one["scenario"]: settings(one["scenario"], steps) for one in found}
    return {
        (one["scenario"], one["seed"]): one
        for one in found
        if one["settings"] == fits[one["scenario"]]
    }


def play(scenario: str, seed: int, steps: int, folder: Path) -> Line:
    """Learns, or goes on; then measures, and keeps the result."""
    place = folder / f"{scenario}-{seed}-{settings(scenario, steps)}"
    run = to_its_end(config(scenario, seed, steps), place)
    own: str | None = module("experts").UPSTREAMS.get(scenario)
    kinds = (*COMMON, *ARCHETYPES, *([own] if own else []))
    returns = measure(run, {}, GAMES, print, scripts=kinds)
    rows = [row for row in progress(place) if "episode/reward" in row]
    line = {
        "scenario": scenario,
        "seed": seed,
        "settings": settings(scenario, steps),
        "steps_per_sec": round(harmonic_mean(row["train/steps_per_sec"] for row in rows)),
        "returns": {team: round(_mean(games), 2) for team, games in returns.items()},
        "nights": round(rows[-1]["episode/length"], 1),
        "by_agent": [round(fmean(own), 2) for own in zip(*returns[LEARNED], strict=True)],
        "curve": [
            [int(row["steps"]), round(row["train/avg_reward_100ep"], 1)]
            for row in rows[:: max(1, len(rows) // CURVE)]
        ],
    }
    return keep_line(FILE, line)


def _mean(games: Sequence[Sequence[float]]) -> float:
    return fmean(fmean(one) for one in games)


def row(scenario: str, lines: Sequence[Line]) -> dict[str, str]:
    """A scenario's cells; in bold the most. Each seed has other games."""
    own = module("experts").UPSTREAMS.get(scenario)
    earned = {team: [one["returns"][team] for one in lines] for team in lines[0]["returns"]}
    best = max(earned, key=lambda team: fmean(earned[team]))
    texts = {team: over_seeds(figures, ".0f") for team, figures in earned.items()}
    texts[best] = f"**{texts[best]}**"
    names = {LEARNED: "PPO", LIKELIEST: "PPO, likeliest", **({own: "its expert"} if own else {})}
    cells = {names.get(team, team): text for team, text in texts.items()}
    nights = f"{fmean(one['nights'] for one in lines):.0f}"
    return {"scenario": scenario, "nights": nights, "its expert": "", **cells}


def report(found: Mapping[tuple[str, int], Line], steps: int) -> str:
    """The section."""
    names = [name for name in module("scenario").names() if any(name == s for s, _ in found)]
    by_name = {
        name: [line for (own, _), line in sorted(found.items()) if own == name] for name in names
    }
    ours = ("PPO", "PPO, likeliest", "nights", UNTRAINED)
    heads = ("scenario", *ours, *COMMON, *ARCHETYPES, "its expert")
    rows = [row(name, lines) for name, lines in by_name.items()]
    table = columns([{head: one[head] for head in heads} for one in rows], figures=False)
    missing = [name for name in module("scenario").names() if name not in names]
    left = f" Not played yet: {', '.join(missing)}." if missing else ""
    seeds = {name: len(lines) for name, lines in by_name.items()}
    return (
        f"Mean return per agent over {GAMES} games that nobody has learned in, the same for all "
        f"teams of a seed; PPO after {steps:,} environment steps with the defaults of `ppo.*`, one "
        "policy for all four agents, learned from the team's mean reward; ± is half a 95 % "
        "interval over seeds, each with games of its own (Student's t). `PPO` draws its actions as "
        "it did while it learned; `PPO, likeliest` takes the likeliest each time. In bold the "
        "most. `nights`: the mean length of PPO's games at the end of learning. Returns are sums "
        "over nights, so a team that lets a fire burn on earns more where fires last. "
        "`asym_b05_k09_c05` and `asym_b09_k09_c05` are one game here, so count them once: they "
        "differ in how easily a fire spreads, and with their `extinguish_mode` none outlives its "
        "night. "
        f"Seeds: {min(seeds.values())} to {max(seeds.values())} per scenario.{left} "
        f"{span(found.values())}\n\n{table}\n\n"
        f"Learning took {_speeds(found)} environment steps per second, on one core that other "
        "work shared."
    )


def _speeds(found: Mapping[tuple[str, int], Line]) -> str:
    speeds = sorted(line["steps_per_sec"] for line in found.values())
    return f"{speeds[0]:,} to {speeds[-1]:,}"


def main() -> None:
    """Plays what is missing, then prints or writes the section; --only plays one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs=2, metavar=("SCENARIO", "SEED"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-bucket-ppo"))
    parser.add_argument("--kept", action="store_true", help="play nothing that is missing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    if args.only:
        name, seed = args.only[0], int(args.only[1])
        if (name, seed) not in known(args.steps):
            play(name, seed, args.steps, args.folder)
        return
    for seed in range(args.seeds):
        for name in module("scenario").names():
            if not args.kept and (name, seed) not in known(args.steps):
                play(name, seed, args.steps, args.folder)
    body = report(known(args.steps), args.steps)
    print(body)
    if args.write:
        command = f"python -m benchmarks.quality.bucket_ppo --steps {args.steps} --write"
        page.write("bucket_ppo", command, body)


if __name__ == "__main__":
    main()
