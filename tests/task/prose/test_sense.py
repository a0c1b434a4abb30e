"""What a text says of its source, by content words alone; numbers by hand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.prose_attacks import MOVES, SWAPS, mapped
from orchestry.task import prose

SOURCE = (
    "Slugs ate my lettuce every night last spring. I went out with a torch and carried them to "
    "the compost, and the beans grew well."
)
GOOD = "The gardener carried slugs away by torch at night, because they ruined the lettuce."
HIDDEN = "That slugs never ate one lettuce within every night upon last spring."
CARRIER = "This is about the torch of the slugs and about the matter of the lettuce."


def test_a_copy_is_known_by_its_content_words() -> None:
    """Of slug, ate, lettuc, night, last, spring all five pairs stand together, of six counted."""
    assert prose.tracing(HIDDEN, SOURCE) == pytest.approx(5 / 6)
    assert prose.overlap(prose.words(HIDDEN), prose.words(SOURCE)) < 0.5  # what words alone see
    # gardener, carr, slug, torch, night, ruin, lettuc: (carr, torch) is too far for one pair
    assert prose.tracing(GOOD, SOURCE) < 0.5
    assert prose.tracing("", SOURCE) == prose.tracing(GOOD, "") == 0.0


@given(words=st.sets(st.sampled_from(sorted(SWAPS))), seed=st.integers(0, 99))
def test_swapped_closed_class_words_hide_nothing(words: set[str], seed: int) -> None:
    """Whichever of them are swapped: no pair of content words comes apart by it."""
    table = {word: SWAPS[word] for word in words}
    said = mapped(SOURCE, table, 1.0, Random(seed))
    assert prose.tracing(said, SOURCE) >= prose.tracing(SOURCE, SOURCE) - 0.1


def test_a_carrier_is_idle_and_nothing_is_done_in_it() -> None:
    assert prose.idling(CARRIER, SOURCE) == pytest.approx(1 / 4)  # matter; torch, slugs, lettuce
    assert prose.deeds(CARRIER, SOURCE) == 0.0
    assert prose.hollowness(CARRIER, SOURCE) == pytest.approx(1 / 4)
    assert prose.novel(GOOD, SOURCE) == pytest.approx(2 / 7)  # gardener, ruined
    assert prose.deeds(GOOD, SOURCE) >= 2 / 7  # carried, ruined
    assert prose.hollowness(GOOD, SOURCE) == 0.0
    assert prose.kept(GOOD, SOURCE) == 1  # carried


def test_a_copied_and_a_foreign_sentence_do_not_mix() -> None:
    foreign = "A tired courier folded his map and pedalled toward another valley."
    assert prose.mixture(GOOD, SOURCE) == 1.0
    assert prose.mixture(foreign, SOURCE) == 0.0
    both = prose.mixture(f"{HIDDEN} {foreign}", SOURCE)
    assert both < 0.1
    assert prose.echoing(HIDDEN, SOURCE) > 0.7 > 0.3 > prose.echoing(GOOD, SOURCE)


def test_own_words_count_beside_the_sources_alone() -> None:
    foreign = "A tired courier folded his map and pedalled toward another valley."
    assert prose.owned(GOOD, SOURCE) == pytest.approx(2 / 7)  # gardener, ruined
    assert prose.owned(f"{HIDDEN} {foreign}", SOURCE) == 0.0
    assert prose.owned("Slug torches carry beaned lettuces.", SOURCE) == 0.0  # endings alone


def test_a_letter_in_words_of_its_own_strays() -> None:
    letter = "Rain drummed when the torch kissed the slugs, and gulls chased the beans."
    assert prose.straying(letter, SOURCE) > 0.8 > 0.3 > prose.straying(GOOD, SOURCE)
    assert prose.straying(SOURCE, SOURCE) < 0.0


def test_roles_are_told_sentence_by_sentence() -> None:
    assert prose.roles("She carried slugs. The torch of beans.") == [
        [("carr", True), ("slug", False)],
        [("torch", False), ("bean", False)],
    ]


def test_the_same_sentence_with_other_words_in_its_slots_comes_again() -> None:
    letter = (
        "The slugs of the torch were in the lettuce. The beans of the night were in the compost."
    )
    assert prose.refrain([letter]) == pytest.approx(1 / 2)
    assert prose.refrain(letter.split(". ")) == pytest.approx(1 / 2)
    assert prose.refrain([GOOD]) == prose.refrain([]) == 0.0


@given(text=st.text(max_size=80), source=st.text(max_size=80))
def test_any_texts_are_measured_in_bounds(text: str, source: str) -> None:
    for measure in (
        prose.tracing,
        prose.idling,
        prose.novel,
        prose.deeds,
        prose.mixture,
        prose.owned,
    ):
        assert 0.0 <= measure(text, source) <= 1.0


@pytest.mark.parametrize("move", MOVES)
def test_every_move_makes_a_text_of_a_text(move: str) -> None:
    assert prose.words(MOVES[move](SOURCE, Random(1)))
