"""docs/architecture.svg shows the rooms and their imports as the code has them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tools.house import COMMAND, IMAGE, PACKAGE, image, imports, layers, reduced

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_what_the_code_imports_now() -> None:
    assert IMAGE.read_text(encoding="utf-8") == image(), (
        f"docs/architecture.svg is not what the code imports now: run `{COMMAND}` and commit it"
    )


@pytest.mark.slow
def test_every_room_is_drawn_and_no_arrow_runs_up() -> None:
    rows = layers()
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {room for row in rows for room in row} == rooms
    level = {room: number for number, row in enumerate(rows) for room in row}
    assert all(level[to] > level[room] for room in rooms for to in imports(room))
    kept = reduced({room: imports(room) for room in rooms})
    assert sum(1 for _ in ET.fromstring(image()).iter(f"{SVG}path")) == sum(map(len, kept.values()))


def test_an_arrow_goes_only_where_a_longer_way_shows_it() -> None:
    assert reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": set(),
    }
    assert reduced({"a": {"b", "c"}, "b": set(), "c": set()})["a"] == {"b", "c"}


@pytest.mark.slow
def test_a_room_says_what_it_is_for_on_two_short_lines() -> None:
    notes = [text.text or "" for text in ET.fromstring(image()).iter(f"{SVG}text")]
    assert max(map(len, notes)) <= 38
