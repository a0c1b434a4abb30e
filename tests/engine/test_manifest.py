"""The manifest keeps the first process, and tells what changed for later ones."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from orchestry.core.errors import StoreError
from orchestry.core.machine import cores, processor
from orchestry.engine.manifest import ground, write_manifest
from orchestry.engine.run import prepare
from orchestry.store.run import Store
from tests.engine.test_run import config


def test_only_what_changed_since_the_process_before_is_added(tmp_path: Path) -> None:
    plan, path = prepare(config()), tmp_path / "manifest.json"
    with Store(tmp_path) as store:
        write_manifest(store, plan, "bubblewrap", clock=lambda: 0.0)
        first = json.loads(path.read_text())
        for at, level in enumerate(("bubblewrap", "rlimits", "rlimits", "bubblewrap"), start=1):
            write_manifest(store, plan, level, clock=partial(float, at))
    assert json.loads(path.read_text()) == {
        **first,
        "resumed": [
            {"at": "1970-01-01T00:00:02Z", "sandbox": "rlimits"},
            {"at": "1970-01-01T00:00:04Z", "sandbox": "bubblewrap"},
        ],
    }


def test_the_machine_is_named_at_the_start(tmp_path: Path) -> None:
    plan = prepare(config())
    with Store(tmp_path) as store:
        write_manifest(store, plan, "bubblewrap")
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["machine"] == {"cpu": processor(), "cores": cores()}
    assert ground((), "NVIDIA H100")["machine"]["gpu"] == "NVIDIA H100"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"resumed": [1]}'])
def test_a_damaged_manifest_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    plan, path = prepare(config()), tmp_path / "manifest.json"
    with Store(tmp_path) as store:
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"manifest\.json can't be read .*or delete it"):
            write_manifest(store, plan, "rlimits")
    assert path.read_bytes() == content
