"""Runs that the reports' tests read: made by the fake provider, each once."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.store.run import Run
from tests.report.made import config, copied


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three episodes of `words` with credits; only read, since all tests share it."""
    return orchestry.train(config(), tmp_path_factory.mktemp("searched") / "run")


@pytest.fixture
def folder(searched: Run, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return copied(searched.folder, tmp_path / "run")
