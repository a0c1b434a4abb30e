"""What a search over hidden copies and form letters finds to pay most under the prose rewards."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.quality.prose_attacks import MOVES, Recipe, drawn
from benchmarks.quality.prose_letters import CARRIERS, Premise, carried, story
from orchestry import BaseTask, Problem
from orchestry.core.types import SPLITS
from orchestry.task import prose
from orchestry.task.prose.words import CLASS_OF
from orchestry.task.registry import load_task

NAMES = ("tldr", "arxiv", "story", "research")
PAIRS = {"tldr": ((9, 26), (1.9, 2.9)), "arxiv": ((98, 125), (1.33, 1.6))}
"""Words of the first text, and how many times as many the second has, that the parts ask for."""
MOST_WORDS = 190
TASKS: dict[str, BaseTask[Any]] = {name: load_task(name) for name in NAMES}
PROBLEMS: dict[str, list[Problem]] = {
    name: [problem for split in SPLITS for problem in task.problems(split)]
    for name, task in TASKS.items()
}
_REWARDS = {name: import_module(f"orchestry_tasks.{name}.reward") for name in NAMES}
_NOTES, _CITED = (import_module(f"orchestry_tasks.research.{name}") for name in ("notes", "cited"))
Said = Mapping[str, str]
"""By role."""


def total(name: str, problem: Problem, said: Said) -> float:
    """What a team's texts earn; no code is run, so no sandbox is needed."""
    task, reward = TASKS[name], _REWARDS[name]
    if name in PAIRS:
        texts = [reward.text(text.strip(), problem.prompt) for text in said.values()]
        return float(task.score(**reward.parts(*texts, task.options)).total)
    texts = [said[spec.role].strip() for spec in task.agents]
    if name == "story":
        work = reward.Work(problem, task.options, (texts[0],), (texts[1],), texts[2])
        return float(task.score(**work.parts()).total)
    pool = _NOTES.pool(problem, task.options.pool)
    work = reward.Work(problem, task.options, pool, _CITED.ids(texts[0]), texts[1], texts[2])
    return float(task.score(**reward.parts(work)).total)


def pair(name: str, recipe: Recipe, problem: Problem) -> Said:
    """Both texts of tldr or arxiv, in the lengths that are asked for."""
    (low, high), (least, most) = PAIRS[name]
    first = recipe.text(problem.prompt, low, high, 0)
    size = len(prose.words(first))
    second = recipe.text(problem.prompt, int(least * size), min(MOST_WORDS, int(most * size)), 1)
    return {"first": first, "second": second}


def story_of(letter: str, how: str, moves: Sequence[str], problem: Problem) -> Said:
    """All three texts of a story by a form letter."""
    data = problem.data
    beats, keys = zip(*data["beats"], strict=True)
    names = data["characters"][0], data["characters"][1]
    premise = Premise(names, data["object"], data["place"], beats, keys)
    texts = story(premise, letter, how, moves, 1)
    return {spec.role: text for spec, text in zip(TASKS["story"].agents, texts, strict=True)}


def answer(problem: Problem, moves: Sequence[str]) -> Said:
    """The needed notes, and their sentences with the key facts, changed by moves, as claims and as
    the answer."""
    facts, needed = _NOTES.facts(problem), _NOTES.needed(problem)
    return _said_twice(needed, " ".join(_quoted(name, facts, moves) for name in needed))


def carrying(problem: Problem, carriers: str, more: int, seed: int) -> Said:
    """The facts in carriers, each with so many other words of its note."""
    needed = _NOTES.needed(problem)
    stated = [(fact.note, fact.any[0]) for fact in _NOTES.facts(problem)]
    others = {name: _terms(_NOTES.notes()[name].text) for name in needed}
    return _said_twice(needed, carried(CARRIERS[carriers], stated, others, more, Random(seed)))


def _said_twice(needed: Sequence[str], said: str) -> Said:
    return {"retriever": " ".join(needed), "analyst": said, "writer": said}


def _terms(text: str) -> list[str]:
    return [word for word in prose.words(text) if word not in CLASS_OF]


def _quoted(note: str, facts: Sequence[Any], moves: Sequence[str]) -> str:
    rng = Random(3)
    said = [*prose.sentences(_NOTES.notes()[note].text)]
    stating = [one for one in said if any(f.note == note and f.stated(one) for f in facts)]
    text = " ".join(stating or said[:1])
    for move in moves:
        text = MOVES[move](text, rng)
    return re.sub(r"\.(\s|$)", rf" [{note}].\1", text)


def search(name: str, seeds: int, problems: int) -> list[tuple[float, float, Recipe]]:
    """Mean and best over problems of recipes drawn from so many seeds, best mean first."""
    chosen = PROBLEMS[name][:: max(1, len(PROBLEMS[name]) // problems)]
    found = []
    for recipe in map(drawn, range(seeds)):
        earned = [total(name, problem, pair(name, recipe, problem)) for problem in chosen]
        found.append((fmean(earned), max(earned), recipe))
    return sorted(found, key=lambda row: -row[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="recipes drawn, one a seed")
    parser.add_argument("--problems", type=int, default=8, help="a spread of so many")
    args = parser.parse_args()
    for name in PAIRS:
        rows = search(name, args.seeds, args.problems)
        for kind in (False, True):
            print(f"{name}, {'with' if kind else 'without'} words about something else:")
            for mean, best, recipe in [row for row in rows if row[2].particular is kind][:5]:
                print(f"  {mean:.3f} (at most {best:.2f})  {recipe}, seed {recipe.seed}")


if __name__ == "__main__":
    main()
