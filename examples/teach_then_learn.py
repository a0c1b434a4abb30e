"""A recipe as a script: gold answers teach a team, then it learns from its reward alone.

    python examples/teach_then_learn.py [--model embedded] [--task code_collaboration]
        [--episodes 16] [--samples 4] [--set A.B=C ...] [--folder runs/taught]

`orchestry run --recipe distil,magrpo` does the same under one budget and with one report.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import orchestry
from orchestry.core.resolve import merge, settings_of
from orchestry.ext.distil.distil import distil


def main() -> None:
    """Reads the command line; teaches, learns, and prints what test problems earn by each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--task", default="code_collaboration")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--samples", type=int, default=4, help="per test problem")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="A.B=C", help="config keys of the second stage"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/taught"))
    args = parser.parse_args()
    team: dict[str, Any] = {"task": args.task, "provider": {"model": args.model}}
    taught = distil(into=args.folder / "taught", config=team, gold=True, note=print)
    own = {"backend": "local", "episodes": args.episodes, "learn": {"from": str(taught.folder)}}
    config = merge(merge(team, settings_of(args.set)), own)
    learned = orchestry.train(orchestry.RunConfig.model_validate(config), args.folder / "learned")
    for name, run in (("taught", orchestry.load_run(taught.run)), ("learned", learned)):
        played = orchestry.evaluate(run, split="test", samples=args.samples)
        print(f"{name}: {fmean(played.rewards):.3f} on {len(played.rewards)} test problems")


if __name__ == "__main__":
    main()
