"""The table of scripted teams has a row per scenario and figures that the rules give."""

from __future__ import annotations

from benchmarks.quality.bucket_teams import ARCHETYPES, COMMON, earned, row
from orchestry.task.registry import load_task


def test_kinds_play_the_same_games() -> None:
    quiet = load_task("bucket_brigade", options={"scenario": "trivial_cooperation"})
    # nothing ever burns: 13 nights of 100 for the houses, and of 0.5 for rest or for work
    assert earned(quiet, "always_rest", 2) == {"0": [13 * 100.5], "1": [13 * 100.5]}
    assert earned(quiet, "always_work", 2) == {"0": [13 * 99.5], "1": [13 * 99.5]}


def test_a_row_has_every_kind_and_one_that_earns_most() -> None:
    cells = row("hard", 3)
    assert {*COMMON, *ARCHETYPES, "its expert"} < cells.keys()
    assert cells["its expert"] == ""
    assert sum(text.startswith("**") for text in cells.values()) == 1
    assert row("sparse_heroics", 3)["its expert"]
