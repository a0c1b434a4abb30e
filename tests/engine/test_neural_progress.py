"""What a run of backend ppo says while it goes on."""

from __future__ import annotations

import pytest

from orchestry.engine.neural import _said
from orchestry.store.progress import PACE


@pytest.mark.parametrize(("steps", "shown"), [(512, "step 512 of 1,000:"), (1024, "step 1,024:")])
def test_steps_beyond_what_was_asked_are_shown_alone(steps: int, shown: str) -> None:
    assert _said({"steps": steps, PACE: 10.0}, 1_000).startswith(shown)
