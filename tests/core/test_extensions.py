"""The table of extensions: what it names is there, and packages of others can add to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import get_args

import pytest

from orchestry.core import extensions
from orchestry.core.errors import ConfigError
from orchestry.core.extensions import BUILT_IN, Extension, Slot, find, load, names
from orchestry.core.resolve import settings_of

OTHER = Extension("other", datasets={"theirs": "orchestry.core.resolve:settings_of"})


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package's extension is installed, and a broken one before it."""
    places = ("no.such.module:OTHER", f"{__name__}:OTHER")
    points = [EntryPoint("other", place, extensions.GROUP) for place in places]
    monkeypatch.setattr(extensions, "entry_points", lambda group: points)
    extensions._others.cache_clear()
    yield
    extensions._others.cache_clear()


@pytest.mark.parametrize("extension", BUILT_IN, ids=lambda one: one.name)
def test_every_place_in_the_table_can_be_loaded(extension: Extension) -> None:
    pytest.importorskip("wasmtime") if extension.name == "wasi" else None
    slots: dict[Slot, Mapping[str, str]] = {
        slot: getattr(extension, slot) for slot in get_args(Slot)
    }
    assert all(find(slot, name) is not None for slot, found in slots.items() for name in found)
    assert all(load(verb.place) is not None for verb in extension.commands.values())
    assert any(slots.values()) or extension.commands, "it adds something"


@pytest.mark.usefixtures("theirs")
def test_another_package_adds_to_the_table() -> None:
    with pytest.warns(UserWarning, match="'no.such.module:OTHER' can't be loaded"):
        assert find("datasets", "theirs") is settings_of
    assert names("datasets")[-1] == "theirs"


def test_a_name_that_nobody_has_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="no extension has datasets 'mbpp', only humaneval, "):
        find("datasets", "mbpp")
