"""Upstream's Rust core: what its program is asked, its clock, and a build that fails."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.peers import bucket_core


def test_a_program_is_asked_for_steps_and_its_seconds_are_counted(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = tmp_path / "play"
    program.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\nsum(range(2_000_000))\n"
        f"pathlib.Path({str(said)!r}).write_text(' '.join(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    before = bucket_core.cpu()
    assert bucket_core.played(program, observed=True, steps=70)() == 70
    assert said.read_text() == "70 observed"
    assert bucket_core.cpu() > before


@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo")
def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "ROOT", tmp_path)
    crates = tmp_path / "crates"
    crates.mkdir()
    with pytest.raises(RuntimeError, match=r"does not build here:\n(.|\n)*rand"):
        bucket_core.built(tmp_path, str(crates))
