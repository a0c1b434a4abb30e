"""Sentences are told from their words in another order; babble and fragments are seen."""

from __future__ import annotations

import pytest

from benchmarks.quality import prose_bonds
from orchestry.task import prose
from orchestry.task.prose.fluency import BONDS, COUNTS
from orchestry.task.registry import load_task
from tests.tasks.salads import shuffled

TLDR = load_task("tldr")
HELD = [problem.prompt for split in ("dev", "test") for problem in TLDR.problems(split)]
"""Posts that the table was not made of."""


def test_the_table_is_what_its_command_writes() -> None:
    assert COUNTS.read_text(encoding="utf-8") == prose_bonds.render()


def test_order_tells_sentences_from_their_words() -> None:
    salads = [shuffled(prose.words(post), 35, seed) for seed, post in enumerate(HELD)]
    assert min(map(prose.bonds, HELD)) > BONDS[1]
    assert sorted(map(prose.bonds, salads))[int(0.8 * len(HELD))] < BONDS[0]


def test_babble_repeats_itself() -> None:
    again = prose.words("It is what it is. " * 9)
    assert prose.novelty(again) < 0.2
    assert prose.fluency("It is what it is. " * 9, again) == 0.0
    assert prose.novelty(prose.words(HELD[0])) == 1.0


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        ("The slugs ate the beans. They liked it.", 1.0),
        ("The slugs ate the beans. they liked it.", 5 / 8),
        ("The slugs ate the beans. They liked", 5 / 7),
        ('He said: "The slugs ate the beans."', 1.0),
        ("Beans.", 0.0),
        ("The " + "very " * 60 + "end.", 0.0),
        ("", 0.0),
        ("...!!!", 0.0),
    ],
)
def test_shape(said: str, whole: float) -> None:
    assert prose.shape(said) == pytest.approx(whole)
