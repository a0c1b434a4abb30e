"""Fixtures of the tasks' tests: a sandbox under the limits of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestry import Tools
from orchestry.services.sandbox import open_sandbox
from orchestry.types import Limits


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    async with open_sandbox(Limits()) as sandbox:
        yield Tools(sandbox=sandbox)
