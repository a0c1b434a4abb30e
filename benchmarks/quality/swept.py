"""Settings of backend local on tldr that a sweep found, beside the shipped ones on new seeds.

    python -m benchmarks.quality.swept [--folder DIR] [--write]

`orchestry sweep --config benchmarks/quality/swept.yaml`: the shipped configs/local_cpu.yaml with 24
episodes, and three of its keys. All lies in --folder, so that a cut-off sweep goes on where it was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page
from benchmarks.stats import columns
from orchestry.core.config import resolve
from orchestry.ext.sweep.report import Found, confirmed, read_sweep, sentences
from orchestry.ext.sweep.settings import read_sweep as read_config
from orchestry.ext.sweep.sweep import trial_config

CONFIG = Path(__file__).with_suffix(".yaml")
SHIPPED = page.ROOT / "configs" / "local_cpu.yaml"


def check() -> None:
    """Raises RuntimeError if the sweep's run is not the shipped one, apart from its length."""
    ours = trial_config(read_config(CONFIG), {}).model_dump(exclude={"episodes"})
    ours["learn"]["threads"] = None  # where it runs, not what it learns
    if ours != resolve([SHIPPED]).model_dump(exclude={"episodes"}):
        raise RuntimeError(f"{CONFIG.name} is not {SHIPPED.name} any more")


def report(found: Found) -> str:
    """The section's text."""
    sides = confirmed(found)
    if isinstance(sides, str):
        raise RuntimeError(sides)
    keys = list(found.sweep["keys"])
    best = next(one for one in found.whole if one["number"] == sides.trial)
    run = trial_config(read_config(CONFIG), {}).model_dump(mode="json")
    shipped = {key: _at(run, key) for key in keys}
    rows = [
        {
            "settings": "shipped",
            **_shown(shipped),
            f"{sides.split} problems": _mean(sides.given.mean),
        },
        {
            "settings": f"the best trial of {len(found.trials)}, number {sides.trial}",
            **_shown(best["settings"]),
            f"{sides.split} problems": _mean(sides.best.mean),
        },
    ]
    return f"{columns(rows, figures=False)}\n\n{' '.join(sentences(found))}\n"


def _shown(settings: dict[str, object]) -> dict[str, str]:
    plain = {key: "default" if value is None else value for key, value in settings.items()}
    return {f"`{k}`": f"{v:.2g}" if isinstance(v, float) else str(v) for k, v in plain.items()}


def _mean(value: float) -> str:
    return f"{value:.3f}"


def _at(plain: dict[str, object], dotted: str) -> object:
    found: object = plain
    for name in dotted.split("."):
        found = found[name]  # type: ignore[index]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Sweeps, prints, and with --write writes the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("sweeps/tldr"))
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args(argv)
    check()
    command = [sys.executable, "-m", "orchestry", "sweep", "--config", str(CONFIG)]
    subprocess.run([*command, "--dir", str(args.folder), "--trust"], check=True)
    text = report(read_sweep(args.folder))
    print(text)
    if args.write:
        page.write("swept", "python -m benchmarks.quality.swept --write", text)


if __name__ == "__main__":
    main()
