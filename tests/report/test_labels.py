"""Labels are short, unique, and say what tells runs apart."""

from __future__ import annotations

from typing import Any

import pytest

from orchestry.report.labels import labels

BASE: dict[str, Any] = {"task": "tldr", "seed": 0, "learn": {"learning_rate": 1e-4, "every": 4}}


def test_only_what_differs_is_said() -> None:
    fast = {**BASE, "learn": {"learning_rate": 1e-3, "every": 4}}
    assert labels([BASE, fast], ["a", "b"]) == [
        "a (learning rate 0.0001)",
        "b (learning rate 0.001)",
    ]
    other = {**BASE, "task": "story"}
    assert labels([BASE, other], ["a", "b"]) == ["a (tldr)", "b (story)"]
    assert labels([BASE], ["mine"]) == ["mine"]


def test_a_setting_that_tells_no_more_is_left_out() -> None:
    fast = {**BASE, "task": "story", "learn": {"learning_rate": 1e-3, "every": 4}}
    again = {**fast, "seed": 1}
    assert labels([BASE, fast, again], ["a", "b", "c"]) == [
        *("a (tldr, seed 0)", "b (story, seed 0)", "c (story, seed 1)")
    ]


def test_the_seed_is_named_before_the_length() -> None:
    longer = {**BASE, "seed": 1, "episodes": 9}
    assert labels([{**BASE, "episodes": 3}, longer], ["a", "b"]) == ["a (seed 0)", "b (seed 1)"]


def test_equal_runs_get_their_folders_and_then_numbers() -> None:
    assert labels([BASE, BASE], ["a", "b"]) == ["a", "b"]
    assert labels([BASE, BASE], ["a", "a"]) == ["a #1", "a #2"]


def test_what_decides_no_result_tells_nothing_apart() -> None:
    dearer = {**BASE, "budget": {"usd": 20.0}}
    assert labels([BASE, dearer], ["a", "b"]) == ["a", "b"]


def test_of_a_path_its_name() -> None:
    paths = [{**BASE, "options": {"path": f"/data/{name}"}} for name in ("one", "two")]
    assert labels(paths, ["a", "b"]) == ["a (path one)", "b (path two)"]


def test_of_a_section_that_few_know_the_key_is_named_whole() -> None:
    credits = [{**BASE, "credit": {"method": name}} for name in ("siblings", "replay")]
    named = labels(credits, ["a", "b"])
    assert named == ["a (credit method siblings)", "b (credit method replay)"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("device", "cuda"), ("micro_tokens", 512), ("gradient_checkpointing", True), ("threads", 2)],
)
def test_where_and_in_what_pieces_it_was_computed_tells_nothing_apart(
    key: str, value: object
) -> None:
    elsewhere = {**BASE, "learn": {**BASE["learn"], key: value}}
    assert labels([BASE, elsewhere], ["a", "b"]) == ["a", "b"]
