"""How long `orchestry --help` takes in a fresh process, and how large the core install is.

The size is what installing the wheel without extras adds to the packages of an empty virtual
environment, precompiled bytecode included, in blocks of the disk (as `du` counts).

    python -m benchmarks.guarantees.start [--times N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import load, page
from benchmarks.server.loopback import ROOT

COMMAND = "python -m benchmarks.guarantees.start --write"
GOAL_S, GOAL_MB = 0.4, 125
BLOCK = 512
MB = 1e6


def help_s(script: Path) -> float:
    """Wall clock of one `orchestry --help`, from the start of its process to its end."""
    began = time.perf_counter()
    subprocess.run([str(script), "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def install(folder: Path) -> tuple[Path, float, int]:
    """A new environment with the wheel of this tree: its folder, what it added in bytes, and how
    many packages."""
    python = folder / "venv" / "bin" / "python"
    _run(sys.executable, "-m", "venv", str(folder / "venv"))
    site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    _run(str(python), "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    wheel = next(folder.glob("orchestry_marl-*.whl"))
    before = disk_bytes(site)
    _run(str(python), "-m", "pip", "install", "--compile", str(wheel))
    packages = len(list(site.glob("*.dist-info"))) - 2  # less pip and setuptools
    return folder / "venv", disk_bytes(site) - before, packages


def disk_bytes(folder: Path) -> int:
    """Blocks that a folder's files take, as `du` counts them."""
    return sum(path.lstat().st_blocks * BLOCK for path in folder.rglob("*"))


def _run(*command: str) -> None:
    environ = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")


def measure(times: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        venv, added, packages = install(Path(name))
        script = venv / "bin" / "orchestry"
        help_s(script)  # what follows finds the files in memory
        before = load.read()
        taken = [help_s(script) for _ in range(times)]
        share = load.others(before, load.read())
    return {
        "times": times,
        "help_median_s": round(median(taken), 3),
        "help_max_s": round(max(taken), 3),
        "core_mb": round(added / MB, 1),
        "packages": packages,
        "others": round(share, 2),
    }


def section(found: dict[str, Any]) -> str:
    fast = "met" if found["help_max_s"] < GOAL_S else "missed"
    small = "met" if found["core_mb"] < GOAL_MB else "missed"
    return (
        f"- `orchestry --help` in a fresh process: median **{found['help_median_s']:.3f} s**, "
        f"longest {found['help_max_s']:.3f} s of {found['times']}; goal {GOAL_S} s: {fast}. Other "
        f"processes took {found['others']:.0%} of the machine meanwhile.\n"
        f"- Core install from the wheel, without extras, beyond an empty virtual environment: "
        f"**{found['core_mb']:.1f} MB** in {found['packages']} packages, bytecode included; goal "
        f"{GOAL_MB} MB: {small}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    found = measure(args.times)
    print(json.dumps(found) if args.json else section(found))
    if args.write:
        page.write("footprint", COMMAND, section(found))
    if found["help_max_s"] >= GOAL_S or found["core_mb"] >= GOAL_MB:
        sys.exit(1)


if __name__ == "__main__":
    main()
