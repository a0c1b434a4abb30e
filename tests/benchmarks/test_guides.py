"""The guides' tables are what their command composes."""

from __future__ import annotations

import re

import pytest

from benchmarks import guides, page


def shown(name: str) -> str:
    """The table that the guide has."""
    text = guides.PAGES[name].read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name}: .*? -->\n\n(.*?)\n\n<!-- end of {name} -->", text, re.DOTALL)
    assert found, name
    return found[1]


@pytest.mark.parametrize("name", ["times", "expected"])
def test_figures_are_those_of_the_benchmarks_page(name: str) -> None:
    composed = {"times": guides.times, "expected": guides.expected}[name](page.read())
    assert shown(name) == composed, "type: python -m benchmarks.guides --write"


@pytest.mark.slow
def test_settings_are_those_of_the_kept_runs() -> None:
    assert shown("tried") == guides.tried(), "type: python -m benchmarks.guides --write"


def test_a_figure_that_the_page_has_no_more_is_an_error() -> None:
    sections = page.read()
    lost = sections["local_learning"].replace("test problems |", "test |")
    with pytest.raises(ValueError, match="local_learning"):
        guides.expected(sections | {"local_learning": lost})
    with pytest.raises(ValueError, match="first"):
        guides.times(sections | {"first": "## The first run\n"})


def test_a_guide_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for the table times"):
        guides.put("# A guide\n", "times", "| a |")
