"""Copies that are hidden by regular expressions, and form letters, earn little on any problem."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from statistics import fmean

import pytest

from benchmarks.prose_attacks import Recipe
from orchestry import BaseTask, Problem, prose
from orchestry.registry import load_task
from orchestry.types import SPLITS

Team = Callable[[Recipe, Problem], float]
NAMES = ("tldr", "arxiv")
TASKS: dict[str, BaseTask[object]] = {name: load_task(name) for name in NAMES}
REWARDS = {name: import_module(f"orchestry_tasks.{name}.reward") for name in NAMES}
PROBLEMS = {
    name: [problem for split in SPLITS for problem in task.problems(split)]
    for name, task in TASKS.items()
}
LENGTHS = {"tldr": ((9, 26), (1.9, 2.9)), "arxiv": ((98, 125), (1.33, 1.6))}
"""Words of the first text, and how many times as many the second has, that the parts ask for."""
RECIPES = [
    *(Recipe("sentences", moves, 1) for moves in (
        (), ("swapped",), ("half swapped",), ("lightly swapped",), ("denied",),
        ("swapped", "denied"),
        ("swapped", "endings"), ("half swapped", "reported"), ("reversed", "half swapped"),
        ("fronted", "swapped"), ("turned", "lightly swapped"), ("idled", "lightly swapped"),
        ("idled", "merged"), ("swapped", "filled"), ("twisted", "half swapped"),
        ("idled", "twisted"),
    )),
    *(Recipe(letter, (), 1, slots) for letter in ("matter", "account", "bare")
      for slots in ("nouns", "phrases", "terms")),
    Recipe("bare", (), 1, "nouns", shuffled=True),
    Recipe("account", ("half swapped",), 1, "phrases"),
    Recipe("bare", ("lightly swapped",), 1, "terms"),
]  # fmt: skip


def pair_total(name: str, recipe: Recipe, problem: Problem) -> float:
    (low, high), (least, most) = LENGTHS[name]
    first = recipe.text(problem.prompt, low, high, 0)
    size = len(prose.words(first))
    second = recipe.text(problem.prompt, int(least * size), min(190, int(most * size)), 1)
    task, reward = TASKS[name], REWARDS[name]
    pair = reward.text(first, problem.prompt), reward.text(second, problem.prompt)
    return float(task.score(**reward.parts(*pair, task.options)).total)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_hidden_copy_or_a_form_letter_earns_little(name: str, recipe: Recipe) -> None:
    found = [pair_total(name, recipe, problem) for problem in PROBLEMS[name][::5]]
    assert max(found) <= 0.5
    assert fmean(found) < 0.2
