"""Copies that are hidden by regular expressions, and form letters, earn little on any problem, and
honest answers as much as before they were looked for."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.quality.prose_attacks import Recipe, drawn
from benchmarks.quality.prose_hacks import PAIRS, PROBLEMS, answer, pair, story_of, total
from benchmarks.quality.prose_letters import HOW, STORIES

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded" / "prose.jsonl"
MOST, MEAN = 0.5, 0.2
RECIPES = [
    *(Recipe("sentences", tuple(moves.split(", ")) if moves else (), 1) for moves in (
        "", "swapped", "half swapped", "lightly swapped", "denied", "swapped, denied",
        "swapped, endings", "half swapped, reported", "reversed, half swapped", "fronted, swapped",
        "turned, lightly swapped", "idled, lightly swapped", "idled, merged", "swapped, filled",
        "twisted, half swapped", "idled, twisted",
    )),
    *(Recipe(letter, (), 1, slots) for letter in ("matter", "account", "bare")
      for slots in ("nouns", "phrases", "terms")),
    Recipe("bare", (), 1, "nouns", shuffled=True),
    Recipe("account", ("half swapped",), 1, "phrases"),
    Recipe("bare", ("lightly swapped",), 1, "terms"),
]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_a_hidden_copy_or_a_form_letter_earns_little(name: str, recipe: Recipe) -> None:
    found = [total(name, problem, pair(name, recipe, problem)) for problem in PROBLEMS[name][::5]]
    assert max(found) <= MOST
    assert fmean(found) < MEAN


@pytest.mark.parametrize("name", PAIRS)
def test_no_recipe_drawn_from_a_seed_pays_in_the_mean(name: str) -> None:
    problems = PROBLEMS[name][::25]
    for seed in range(40):
        recipe = drawn(seed)
        if recipe.particular:
            continue
        assert fmean(total(name, one, pair(name, recipe, one)) for one in problems) <= MOST, recipe


@pytest.mark.parametrize("how", [how for how in HOW if how != "pairs"])
@pytest.mark.parametrize("letter", STORIES)
def test_a_letter_of_a_story_earns_little(letter: str, how: str) -> None:
    problems = PROBLEMS["story"]
    found = [total("story", one, story_of(letter, how, (), one)) for one in problems]
    assert max(found) <= MOST


def answers(moves: str) -> list[float]:
    """What sentences of the notes earn as claims and as the answer, behind right notes (0.2)."""
    named = tuple(moves.split(", ")) if moves else ()
    return [total("research", one, answer(one, named)) for one in PROBLEMS["research"]]


@pytest.mark.parametrize("moves", ["", "swapped", "half swapped", "denied", "swapped, filled"])
def test_sentences_of_the_notes_in_other_closed_class_words_earn_little(moves: str) -> None:
    assert max(answers(moves)) <= MOST


@pytest.mark.parametrize("moves", ["swapped, turned", "swapped, reported", "swapped, thinned"])
def test_sentences_of_the_notes_turned_round_earn_little_in_the_mean(moves: str) -> None:
    assert fmean(answers(moves)) < 0.45


@pytest.mark.parametrize("more", range(4))
def test_carriers_of_key_facts_earn_little(more: int) -> None:
    found = [total("research", one, answer(one, (), carrier=more)) for one in PROBLEMS["research"]]
    assert fmean(found) < 0.3


def recorded(name: str, by: str) -> list[dict[str, Any]]:
    rows = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["task"] == name and row["by"] == by]


@pytest.mark.parametrize("name", PROBLEMS)
def test_honest_answers_lose_nothing(name: str) -> None:
    """Written for problems without a gold, before the measures were; what they earned then."""
    problems = {problem.id: problem for problem in PROBLEMS[name]}
    for row in recorded(name, "hand"):
        now = total(name, problems[row["problem"]], row["answers"])
        assert now >= row["before"] - 0.02, row["problem"]


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_embedded_models_answers_keep_their_worth(name: str) -> None:
    problems = {problem.id: problem for problem in PROBLEMS[name]}
    rows = recorded(name, "model")
    now = fmean(total(name, problems[row["problem"]], row["answers"]) for row in rows)
    assert now >= fmean(row["before"] for row in rows) - 0.02
