"""Fixtures of the local backend's tests; torch is imported where one is used."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.store.run import Run
from tests.backends.letters import TASK, config, write_task


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model."""
    from tests.backends.local.tiny import tiny_folder

    return str(tiny_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the task."""
    return write_task(tmp_path_factory.mktemp("tasks"), TASK)


@pytest.fixture(scope="session")
def finished(model: str, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two updates of four episodes, only read."""
    return orchestry.train(config(model, tasks), tmp_path_factory.mktemp("runs") / "run")
