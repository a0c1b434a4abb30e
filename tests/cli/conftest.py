"""Fixtures of the command line's tests: an empty folder to stand in, and no key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import CommandLine


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """`orchestry ARGS`, from an empty folder with an empty cache and no key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for vendor in ("ANTHROPIC", "OPENAI"):
        for what in ("API_KEY", "BASE_URL", "MODEL"):
            monkeypatch.delenv(f"{vendor}_{what}", raising=False)
    return CommandLine(capsys)
