"""Upstream's Rust core of Bucket Brigade, built with a program of ours that plays it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks import page

STEPS = 100_000
_MANIFEST = """\
[package]
name = "bucket_brigade_core"
version = "0.0.0"
edition = "2021"
[lib]
path = '{library}'
[[bin]]
name = "play"
path = '{program}'
[features]
python = []
wasm = []
[dependencies]
rand = "0.8"
rand_pcg = "0.3"
serde = {{ version = "1", features = ["derive"] }}
serde_json = "1"
[profile.release]
lto = true
codegen-units = 1
"""
"""Ours, since cargo would also look for the crates of upstream's bindings to Python."""


def built(checkout: Path, crates: str) -> Path:
    """The program. `crates`: a folder that has them all; empty: cargo's own registry. Raises
    RuntimeError with cargo's words."""
    folder = page.ROOT / ".envs" / "bucket-core"
    folder.mkdir(parents=True, exist_ok=True)
    library = checkout.resolve() / "bucket-brigade-core" / "src" / "lib.rs"
    program = Path(__file__).with_suffix(".rs")
    (folder / "Cargo.toml").write_text(_MANIFEST.format(library=library, program=program))
    command = ["cargo", "build", "--release", "--quiet"]
    if crates:
        given = ("crates-io.replace-with='given'", f"given.directory='{Path(crates).resolve()}'")
        command += ["--offline", *(part for one in given for part in ("--config", f"source.{one}"))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"upstream's Rust does not build here:\n{done.stderr[-2000:]}")
    return folder / "target" / "release" / "play"


def played(program: Path, observed: bool, steps: int = STEPS) -> Callable[[], int]:
    """So many steps in a process of its own."""
    command = [str(program), str(steps), "observed" if observed else "alone"]

    def play() -> int:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return steps

    return play


def cpu() -> float:
    """Seconds that this process's children have computed."""
    times = os.times()
    return times.children_user + times.children_system
