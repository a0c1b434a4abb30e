"""The table of extensions: what it names is there, and packages of others can add to it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from orchestry.core import extensions
from orchestry.core.errors import ConfigError
from orchestry.core.extensions import BUILT_IN, Extension, find, names
from orchestry.core.resolve import settings_of

OTHER = Extension("other", datasets={"theirs": "orchestry.core.resolve:settings_of"})


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package's extension is installed."""
    point = EntryPoint("other", f"{__name__}:OTHER", extensions.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: [point])
    extensions._others.cache_clear()
    yield
    extensions._others.cache_clear()


@pytest.mark.parametrize("extension", BUILT_IN, ids=lambda one: one.name)
def test_every_place_in_the_table_can_be_loaded(extension: Extension) -> None:
    pytest.importorskip("wasmtime") if extension.name == "wasi" else None
    for slot in ("datasets", "exports", "levels"):
        for name in getattr(extension, slot):
            assert find(slot, name) is not None


@pytest.mark.usefixtures("theirs")
def test_another_package_adds_to_the_table() -> None:
    assert names("datasets")[-1] == "theirs"
    assert find("datasets", "theirs") is settings_of


def test_a_name_that_nobody_has_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="no extension has datasets 'mbpp', only humaneval, "):
        find("datasets", "mbpp")
