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


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Forty episodes of `words`, independent trajectories without credits; only read."""
    search = {"strategy": "chains", "k_samples": 2}
    found = config(episodes=40, search=search, credit={"share": 0.0})
    return orchestry.train(found, tmp_path_factory.mktemp("long") / "run")


@pytest.fixture(scope="session")
def called(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four episodes whose runner calls tools; only read."""
    folder, found = tmp_path_factory.mktemp("called"), config(task="errands", episodes=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ERRANDS", str(folder / "noted"))
        return orchestry.train(found, folder / "run")


@pytest.fixture(scope="session")
def programmed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four episodes of a program that runs tools itself; only read."""
    for package in ("aiohttp", "openai"):
        pytest.importorskip(package)
    found = config(task="chatter", options={"way": "tools"}, episodes=4)
    return orchestry.train(found, tmp_path_factory.mktemp("programmed") / "run")


@pytest.fixture
def folder(searched: Run, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return copied(searched.folder, tmp_path / "run")


@pytest.fixture
def forty(long: Run, tmp_path: Path) -> Path:
    """A copy of the long run, to be changed."""
    return copied(long.folder, tmp_path / "run")
