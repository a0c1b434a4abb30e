"""What files are by content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestry.core import digests
from orchestry.core.digests import folder_digest


def _folder(path: Path, weights: bytes = b"w" * (2 * digests.SMALL)) -> Path:
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(weights)
    (path / "config.json").write_text("{}")
    return path


def _digest(folder: Path, cache: Path) -> str:
    return folder_digest(folder, folder.iterdir(), {"XDG_CACHE_HOME": str(cache)})


def test_a_copy_elsewhere_is_the_same_and_a_changed_byte_is_not(tmp_path: Path) -> None:
    first = _digest(_folder(tmp_path / "a"), tmp_path / "cache")
    assert _digest(_folder(tmp_path / "b" / "moved"), tmp_path / "cache") == first
    other = bytearray(b"w" * (2 * digests.SMALL))
    other[digests.SMALL] ^= 1
    assert _digest(_folder(tmp_path / "c", bytes(other)), tmp_path / "cache") != first


def test_names_count(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a")
    first = _digest(folder, tmp_path / "cache")
    (folder / "config.json").rename(folder / "other.json")
    assert _digest(folder, tmp_path / "cache") != first


def test_a_large_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path / "a")
    first = _digest(folder, tmp_path / "cache")
    read = list[Path]()
    real = digests.file_digest

    def noted(path: Path) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(digests, "file_digest", noted)
    assert _digest(folder, tmp_path / "cache") == first
    assert [path.name for path in read] == ["config.json"]


def test_content_replaced_in_place_is_seen_though_its_time_was_set_back(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a")
    first, file = _digest(folder, tmp_path / "cache"), folder / "model.safetensors"
    before = file.stat()
    with file.open("r+b") as target:
        target.write(b"x")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert _digest(folder, tmp_path / "cache") != first


def test_a_cache_that_can_t_be_written_costs_time_alone(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, no folder")
    first = _digest(_folder(tmp_path / "a"), tmp_path / "cache")
    assert _digest(_folder(tmp_path / "b"), tmp_path / "cache") == first
