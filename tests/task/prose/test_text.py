"""What is measured of a text beside its source, and of two beside each other; numbers by hand."""

from __future__ import annotations

import pytest

from orchestry.task import prose

SOURCE = (
    "Slugs ate my lettuce every night last spring. I went out with a torch and carried them to "
    "the compost, and the beans grew well."
)
GOOD = "The writer carried slugs away by torch at night, because they ate the lettuce."


SENSE = prose.Sense(
    mixed=(0.0, 0.5),
    idle=(1.0, 0.5),
    new=(-1.0, 0.0),
    done=(-1.0, 0.0),
    again=(1.0, 0.5),
    strayed=(9.0, 10.0),
)
"""Asks for nothing but sentences that are neither copied nor foreign, half of them."""


def leaves(words: int) -> prose.Text:
    return prose.Text(" ".join(["leaf"] * words), SOURCE)


@pytest.mark.parametrize(
    ("words", "worth"),
    [(0, 0.0), (2, 0.0), (8, 1.0), (100, 1.0), (256, 1.0), (320, 0.5), (384, 0.0), (9000, 0.0)],
)
def test_length(words: int, worth: float) -> None:
    assert prose.in_length(leaves(words), 8, 256) == pytest.approx(worth)


def test_length_rises_with_every_word_up_to_the_limit() -> None:
    worth = [prose.in_length(leaves(words), 8, 256) for words in range(3, 9)]
    assert worth == pytest.approx([(words - 8 / 3) / (16 / 3) for words in range(3, 9)])


@pytest.mark.parametrize(
    ("value", "worth"),
    [(0.5, 0.0), (0.75, 0.05), (1, 0.1), (1.5, 0.55), (2, 1.0), (3, 1.0), (3.5, 0.55), (8, 0.0)],
)
def test_a_plateau_has_slopes(value: float, worth: float) -> None:
    assert prose.plateau(value, (1.0, 2.0, 3.0, 4.0)) == pytest.approx(worth)


def test_a_level_opens_the_next_in_proportion() -> None:
    levels = {"a": 0.7, "b": 0.25, "c": 1.0, "d": 0.0, "e": 1.0}
    found = prose.opened(levels, 0.8)
    assert found == pytest.approx({"a": 0.56, "b": 0.2, "c": 0.4, "d": 0.0, "e": 0.0})


def test_a_copy_with_words_left_out_is_a_copy() -> None:
    less = " ".join(word for i, word in enumerate(SOURCE.split()) if i % 4 != 3)
    assert prose.Text(SOURCE, SOURCE).copying == 1.0
    assert prose.Text(less, SOURCE).copying > 0.9
    assert prose.Text(GOOD, SOURCE).copying < 0.3


def test_a_sound_text_is_fluent_about_its_source_and_no_copy() -> None:
    assert prose.Text(GOOD, SOURCE).soundness == pytest.approx(1.0)
    assert prose.Text(SOURCE, SOURCE).soundness == 0.0
    assert prose.Text("The trains of this town were late again.", SOURCE).soundness == 0.0
    assert prose.Text("", SOURCE).soundness == prose.Text("", "").soundness == 0.0


def test_one_good_text_of_two_is_worth_a_quarter_and_one_twice_nothing() -> None:
    good, copy = prose.Text(GOOD, SOURCE), prose.Text(SOURCE, SOURCE)
    pairs = [prose.pair_soundness(*pair, SENSE) for pair in ((good, copy), (copy, good))]
    half = prose.mixture(f"{GOOD}\n{SOURCE}", SOURCE) / 0.5
    assert pairs == pytest.approx([0.25 * half] * 2)
    assert prose.pair_soundness(good, good, SENSE) == 0.0


def test_faults_and_remarks_name_what_is_wrong() -> None:
    good, copy, none = (prose.Text(raw, SOURCE) for raw in (GOOD, SOURCE, ""))
    assert not any(prose.faults(good).values())
    assert [tag for tag, held in prose.faults(good, copy).items() if held] == ["copied"]
    assert [tag for tag, held in prose.faults(none).items() if held] == ["empty"]
    assert prose.remark("first", copy, "post").endswith("runs copied from it 1.00.")


def test_words_put_at_random_into_a_sound_sentence_disagree_with_the_source() -> None:
    """Of the pairs (bean, night), (night, lettuce), (torch, bean) the source joins two."""
    said = prose.Text("Beans come at night and eat lettuce. A torch helps the beans.", SOURCE)
    assert said.agreement == pytest.approx((2 + 2) / (3 + 4))
    assert prose.Text("", SOURCE).agreement == prose.Text("Nothing.", "").agreement == 0.5
    strict = prose.Text(said.raw, SOURCE, agreed=(0.5, 1.0))
    assert strict.soundness == pytest.approx(said.soundness * (4 / 7 - 0.5) / 0.5)


def test_words_around_a_quotation_do_not_hide_it() -> None:
    """Eight words and more that stand in the source word for word, of all words."""
    quote, short = "ate my lettuce every night last spring", "my lettuce every night last spring"
    said = prose.Text(f"As was said, slugs {quote}. I went on.", SOURCE)
    assert said.quoting == pytest.approx((1 + 7 + 2) / 14)  # `I went` goes on in the source
    assert prose.Text(f"They like {short} too.", SOURCE).quoting == 0.0
    assert prose.Text("", SOURCE).quoting == 0.0
    strict = prose.Text(said.raw, SOURCE, quoted=(1.0, 0.0))
    assert strict.soundness == pytest.approx(said.soundness * (1 - said.quoting))
