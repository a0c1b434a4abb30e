"""Labels are short, unique, and say what tells runs apart."""

from __future__ import annotations

from typing import Any

from orchestry.analysis.labels import labels

BASE: dict[str, Any] = {"task": "tldr", "seed": 0, "learn": {"learning_rate": 1e-4, "every": 4}}


def test_only_what_differs_is_said() -> None:
    fast = {**BASE, "learn": {"learning_rate": 1e-3, "every": 4}}
    assert labels([BASE, fast], ["a", "b"]) == ["learning rate 0.0001", "learning rate 0.001"]
    other = {**BASE, "task": "story"}
    assert labels([BASE, other], ["a", "b"]) == ["tldr", "story"]


def test_a_setting_that_tells_no_more_is_left_out() -> None:
    fast = {**BASE, "task": "story", "learn": {"learning_rate": 1e-3, "every": 4}}
    again = {**fast, "seed": 1}
    assert labels([BASE, fast, again], ["a", "b", "c"]) == [
        *("tldr, seed 0", "story, seed 0", "story, seed 1")
    ]


def test_the_seed_is_named_before_the_length() -> None:
    longer = {**BASE, "seed": 1, "episodes": 9}
    assert labels([{**BASE, "episodes": 3}, longer], ["a", "b"]) == ["seed 0", "seed 1"]


def test_equal_runs_get_their_folders_and_then_numbers() -> None:
    assert labels([BASE, BASE], ["a", "b"]) == ["tldr (a)", "tldr (b)"]
    assert labels([BASE, BASE], ["a", "a"]) == ["tldr (a) #1", "tldr (a) #2"]


def test_what_decides_no_result_tells_nothing_apart() -> None:
    dearer = {**BASE, "budget": {"usd": 20.0}}
    assert labels([BASE, dearer], ["a", "b"]) == ["tldr (a)", "tldr (b)"]


def test_of_a_path_its_name() -> None:
    paths = [{**BASE, "options": {"path": f"/data/{name}"}} for name in ("one", "two")]
    assert labels(paths, ["a", "b"]) == ["path one", "path two"]
