"""Sections of the benchmarks page come and go without touching each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import page


def test_sections_keep_their_order_and_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "benchmarks.md"
    page.write("budget", "python -m benchmarks.guarantees.budget", "| a |\n|---|\n| 1 |", path)
    page.write("overhead", "python -m benchmarks.peers.overhead", "first", path)
    before = page.read(path)["budget"]
    page.write("overhead", "python -m benchmarks.peers.overhead", "second", path)
    sections = page.read(path)
    assert [*sections] == ["overhead", "budget"]
    assert "second" in sections["overhead"]
    assert "first" not in sections["overhead"]
    assert sections["budget"] == before


def test_a_section_says_how_when_and_where_it_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    page.write("resume", "python -m benchmarks.guarantees.resume", "figures", path)
    text = page.read(path)["resume"]
    for part in (
        "python -m benchmarks.guarantees.resume",
        " UTC, revision ",
        " cores, ",
        " GiB, Python 3.",
    ):
        assert part in text


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known are overhead"):
        page.write("speed", "python -m benchmarks.speed", "", tmp_path / "benchmarks.md")
