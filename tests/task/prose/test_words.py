"""Stems and transitions: whole words, whatever their endings and order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.task import prose
from orchestry.task.prose.score import TRANSITIONS

SAID = (
    "After a storm the family searched every alley. However, the cat was found, because children "
    "had shared their ham with him, and then he came home."
)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("stopped", "stopping", True),
        ("baker", "baking", True),
        ("neighbour's", "neighbours", True),
        ("garden", "gardener", True),
        ("cat", "car", False),
        ("slug", "salad", False),
    ],
)
def test_stems(one: str, other: str, same: bool) -> None:
    assert (prose.stem(one) == prose.stem(other)) is same


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ("The soap was sold by a sophist.", 0),  # `so` only inside of words
        ("It was so, and it was also there in buttermilk.", 2),
        ("A result as such, for instance of butter.", 1),
        ("AS A RESULT the butter melted. However", 2),
        ("Nothing of that sort.", 0),
    ],
)
def test_transitions_are_whole_words(said: str, kinds: int) -> None:
    padding = " The slugs of the garden ate all the beans at night." * 2
    assert prose.transitions(prose.words(said + padding)) == pytest.approx(kinds / 2)


@given(seed=st.integers(0, 1000), chosen=st.permutations(SAID.split()))
def test_the_order_of_the_transitions_is_irrelevant(seed: int, chosen: list[str]) -> None:
    rng = random.Random(seed)
    kinds = rng.sample(list(TRANSITIONS.items()), len(TRANSITIONS))
    table = {kind: tuple(rng.sample(phrases, len(phrases))) for kind, phrases in kinds}
    said = prose.words(" ".join(chosen))
    assert prose.transitions(said, table) == prose.transitions(said)
