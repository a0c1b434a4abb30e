"""The presets' prices: a table of forecasts, put between the marks of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.guarantees.presets import COMMAND, PAGE, ROWS, forecast, put, table

ONE = {
    "calls": 1200,
    "input_tokens": 34567,
    "output_tokens": 890,
    "cost_usd": {"p5": 0.5, "expected": 1.234, "p95": 2.0, "max": 5.0},
}


def test_a_forecast_is_a_row() -> None:
    assert "| a | 1,200 | 34,567 | 890 | **1.23** | 0.50 to 2.00 |" in table({"a": ONE})


def test_the_table_takes_the_place_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- presets -->\nold\n<!-- end of presets -->\nafter\n")
    for text in ("new \\1", "newer"):
        put(text, page)
        assert page.read_text() == (
            f"before\n<!-- presets -->\n{text}\n<!-- end of presets -->\nafter\n"
        )
    page.write_text("none")
    with pytest.raises(ValueError, match="has no line '<!-- presets -->'"):
        put("new", page)


def test_the_page_has_a_row_of_each_preset_by_the_command() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = text.partition("<!-- presets -->")[2].partition("<!-- end of presets -->")[0]
    assert f"By `{COMMAND}`, 20" in shown
    assert all(f"\n| {name} |" in shown for name in ROWS)


@pytest.mark.slow
def test_the_wide_search_costs_more_calls_than_the_defaults(tmp_path: Path) -> None:
    usual, wide = (forecast(ROWS[name], tmp_path) for name in ("the defaults", "`--config seeds`"))
    assert wide["calls"] > 3 * usual["calls"]
    assert wide["cost_usd"]["expected"] > usual["cost_usd"]["expected"]
