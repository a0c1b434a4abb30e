"""A real run of the embedded model, recorded once, replayed through all of the engine.

The recording is that of CONTRIBUTING's command; a changed prompt needs a new one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import validate
from orchestry.core.errors import ProviderError
from orchestry.core.resolve import merge
from orchestry.store.journal import Answered, read
from orchestry.store.run import read_config

RECORDING = Path(__file__).parents[1] / "fixtures" / "recorded" / "code_review"
REPLAY = {"provider": {"name": "recorded", "recording": str(RECORDING)}}


def test_a_replay_is_the_recorded_run_again(tmp_path: Path) -> None:
    run = orchestry.train(validate(merge(read_config(RECORDING), REPLAY)), tmp_path / "run")
    recorded = [e.completion for e in read(RECORDING / "journal.jsonl") if isinstance(e, Answered)]
    replayed = [e.completion for e in run.events if isinstance(e, Answered)]
    assert len(replayed) == len(recorded) == 30
    assert {c.text for c in replayed} == {c.text for c in recorded}
    assert (run.folder / "rewards.csv").read_text() == (RECORDING / "rewards.csv").read_text()
    assert run.summary.model == "SmolLM2-135M-Instruct-Q4_1"
    assert run.summary.cost_usd == 0
    assert {group.agents for episode in run.episodes for group in episode.groups} == {
        ("writer",),
        ("reviewer",),
        ("refactorer",),
    }


def test_a_run_that_was_not_recorded_is_named(tmp_path: Path) -> None:
    other = validate(merge(merge(read_config(RECORDING), REPLAY), {"seed": 1}))
    with pytest.raises(ProviderError, match="use the task, split, seed"):
        orchestry.train(other, tmp_path / "run")
