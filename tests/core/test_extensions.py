"""The table of extensions: what it names is there, and packages of others can add commands."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import get_args

import pytest

from orchestry.cli.groups import App
from orchestry.core import extensions
from orchestry.core.errors import ConfigError
from orchestry.core.extensions import BUILT_IN, Extension, Slot, find, load, verbs
from tests.cli.conftest import cli as cli
from tests.cli.support import CommandLine

app = App("Count what somebody else counts.")


@app.command()
def counted() -> None:
    """Count."""


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package adds a command, one of a name of ours, and one that can't be loaded."""
    places = {"count": f"{__name__}:app", "run": f"{__name__}:app", "broken": "no.such:app"}
    points = [EntryPoint(name, place, extensions.GROUP) for name, place in places.items()]
    monkeypatch.setattr(extensions, "entry_points", lambda group: points)


@pytest.mark.parametrize("extension", BUILT_IN, ids=lambda one: one.name)
def test_every_place_in_the_table_can_be_loaded(extension: Extension) -> None:
    pytest.importorskip("wasmtime") if extension.name == "wasi" else None
    slots: dict[Slot, Mapping[str, str]]
    slots = {slot: getattr(extension, slot) for slot in get_args(Slot)}
    assert all(find(slot, name) is not None for slot, found in slots.items() for name in found)
    assert all(load(verb.place) is not None for verb in extension.commands.values())
    assert any(slots.values()) or extension.commands, "it adds something"


def test_a_command_of_a_group_is_listed_there_alone(cli: CommandLine) -> None:
    assert "generate" in verbs("tasks")
    assert "generate" not in verbs()
    assert verbs("tasks")["generate"].help[:40] in cli("tasks", "--help").out


@pytest.mark.usefixtures("theirs")
def test_another_package_adds_a_command_and_replaces_none(cli: CommandLine) -> None:
    listed = cli("--help").out
    assert extensions.THEIRS in listed
    assert "count" in listed
    assert "Count what somebody else counts." not in listed, "nothing of theirs was loaded"
    assert cli("count", "--help").code == 0
    assert "Search or train on a task" in listed
    assert "--episodes" in cli("run", "--help").out


@pytest.mark.usefixtures("theirs")
def test_a_command_that_cant_be_loaded_breaks_no_other(cli: CommandLine) -> None:
    assert cli("--version").code == 0
    broken = cli("broken")
    assert broken.code != 0
    assert "broken can't be loaded from no.such:app" in broken.err


def test_a_name_that_nobody_has_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'mbpp'.*humaneval"):
        find("datasets", "mbpp")
