"""What a local run stands on is known by its content, not by where it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestry.engine import prepare
from tests.backends.letters import config

pytest.importorskip("torch")


def _digests(model: Path | str, tasks: Path, *more: str) -> dict[str, str]:
    return prepare(config(str(model), tasks, *more)).backend.digests()


def _copied(model: str, folder: Path) -> Path:
    return Path(shutil.copytree(model, folder))


def _flipped(file: Path, place: int = -8) -> None:
    """One bit, in the file's tensors."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_base_moved_is_the_same_and_a_changed_one_is_not(
    model: str, tasks: Path, tmp_path: Path
) -> None:
    here = _digests(model, tasks)
    moved = _copied(model, tmp_path / "moved")
    assert here == _digests(moved, tasks)
    assert set(here) == {"base"}
    (moved / "README.md").write_text("no part of the model")
    assert here == _digests(moved, tasks)
    _flipped(moved / "model.safetensors")
    assert here != _digests(moved, tasks)


def test_bases_of_agents_are_told_apart(model: str, tasks: Path, tmp_path: Path) -> None:
    moved = _copied(model, tmp_path / "moved")
    found = _digests(model, tasks, f"agents.right.model={moved}")
    assert set(found) == {"base of left", "base of right"}
    assert found["base of left"] == found["base of right"]
