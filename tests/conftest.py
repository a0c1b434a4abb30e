"""How all tests run, and what tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# A machine that is busy is no fault of the code: how long things take is measured in benchmarks/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A local run sets torch's threads for the whole process; here they come back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
