"""Stop strings, found token by token whatever a token holds."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from orchestry.backends.local.endings import Endings

WORDS = ["<end>", "a", "b", "ab", "Ċ", "ĊĊ", "Ã", "©", "Ġ"]
"""As byte-level BPE writes them: Ċ a line break, Ġ a space, Ã© the two bytes of é."""


def fast(plain: Tokenizer) -> Any:
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=plain, eos_token="<end>")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    plain = Tokenizer(models.BPE({word: number for number, word in enumerate(WORDS)}, []))
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(["<end>"])
    return fast(plain)


@pytest.mark.parametrize(
    ("words", "stop", "ending", "text"),
    [
        ("a b", ("b",), "stop", "a"),
        ("a ab", ("b",), "stop", "aa"),  # completed within a token
        ("a ab", ("aa",), "stop", ""),  # begun in one, completed in another
        ("a ĊĊ", ("\n",), "stop", "a"),
        ("a Ċ Ċ", ("\n\n",), "stop", "a"),
        ("a Ã", ("é",), None, "a\ufffd"),
        ("a Ã ©", ("é",), "stop", "a"),  # a character in two tokens
        ("b Ġ", ("b ",), "stop", ""),
        ("a a", ("b",), None, "aa"),
        ("a a a", ("b",), "length", "aaa"),
        ("a a b", ("b",), "stop", "aa"),  # at the last token allowed
        ("a <end>", ("b",), "end", "a"),
    ],
)
def test_endings(
    tokenizer: Any, words: str, stop: tuple[str, ...], ending: str | None, text: str
) -> None:
    endings = Endings(tokenizer, {0})
    ids = [WORDS.index(word) for word in words.split()]
    asked = [endings.of(ids[:end], 3, stop) for end in range(1, len(ids) + 1)]
    assert asked[:-1] == [None] * (len(ids) - 1)
    assert asked[-1] == ending
    assert endings.text(ids, stop) == text


def test_strings_of_many_tokens(tokenizer: Any) -> None:
    endings = Endings(tokenizer, {0})
    ids = [WORDS.index(word) for word in "baaaabaabaa"]
    stop = ("aaba",)
    found = [end for end in range(1, len(ids) + 1) if endings.of(ids[:end], 99, stop)]
    assert found[0] == 7
    assert endings.text(ids[:7], stop) == "baa"


def test_a_decoder_that_strips_the_first_space_hides_no_stop_string() -> None:
    words = ["<end>", "▁", "▁a", "a", "b"]
    plain = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    plain.decoder = decoders.Metaspace()
    stripping = fast(plain)
    endings = Endings(stripping, {0})
    assert stripping.decode([2]) == "a"
    assert endings.of([4, 4, 2], 99, (" a",)) == "stop"
    assert endings.of([4, 1], 99, ("b ",)) == "stop"
