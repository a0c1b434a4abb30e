"""Fixtures of the tasks' tests: a sandbox under the limits of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestry import Tools
from orchestry.core.types import Limits
from orchestry.sandbox import open_sandbox


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    async with open_sandbox(Limits()) as sandbox:
        yield Tools(sandbox=sandbox)
