"""How all tests run, and what tests of several folders share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Tests compare to the last bit, which a GPU's bfloat16 is not made for.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
for _vendor in ("ANTHROPIC", "OPENAI"):  # yours: a test asks nobody but its own servers
    for _what in ("API_KEY", "BASE_URL", "MODEL"):
        os.environ.pop(f"{_vendor}_{_what}", None)
# A machine that is busy is no fault of the code: how long things take is measured in benchmarks/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _take_one_core() -> None:
    """Gives each worker of a parallel run one core, and so what it starts.

    A model's threads wait for each other actively: two workers on all cores take far longer.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker.startswith("gw") and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker[2:]) % len(cores)]})


_take_one_core()  # before anything counts the cores
gc.disable()  # thousands of tests are read in: a third of that time went into looking for garbage


def pytest_collection_finish() -> None:
    """What was read in stays to the end: no later look for garbage goes through it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _places_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests' runs are known to name is not what this machine's user named. Nor are they
    answered from the user's cache: a server of an earlier session may have had the same port."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    answers = tmp_path_factory.mktemp("answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestry.models.gateway.default_folder", lambda: answers)
        yield


@pytest.fixture(autouse=True)
def _servers_are_left_as_they_were() -> Iterator[None]:
    """A test that leaves a key or a server behind misleads every later one of its process."""
    yours = ("_API_KEY", "_BASE_URL")
    before = {name: text for name, text in os.environ.items() if name.endswith(yours)}
    yield
    assert {name: text for name, text in os.environ.items() if name.endswith(yours)} == before


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A local run sets torch's threads for the whole process; here they come back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
