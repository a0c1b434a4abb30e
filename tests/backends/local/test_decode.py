"""Drawn tokens follow softmax(logits / T), cut at top-p; stop strings are found token by token
whatever a token holds.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from orchestry.backends.local.decode import LIKELIEST, Endings, pick
from orchestry.core.errors import OrchestryError

WORDS = 2 * LIKELIEST
DRAWS = 8_000


def cut(
    logits_V: torch.Tensor, temperature: float, top_p: float, top_k: int = WORDS
) -> torch.Tensor:
    """The distribution written out: the fewest of the top_k tokens that reach top_p of these,
    rescaled."""
    chances = (logits_V.double() / temperature).softmax(-1).tolist()
    best = sorted(range(len(chances)), key=lambda token: -chances[token])[:top_k]
    whole = sum(chances[token] for token in best)
    kept, mass = [0.0] * len(chances), 0.0
    for token in best:
        if mass >= top_p * whole:
            break
        kept[token] = chances[token]
        mass += chances[token]
    return torch.tensor(kept) / mass


def drawn(
    logits_V: torch.Tensor,
    temperature: float,
    top_p: float,
    uniforms: list[float],
    top_k: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = len(uniforms)
    return pick(
        logits_V.expand(rows, -1),
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.tensor(uniforms),
        None if top_k is None else torch.full((rows,), top_k),
    )


@pytest.mark.parametrize("spread", [0.5, 4.0])  # flat: beyond the head; peaked: within it
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(0.8, 0.95, WORDS), (1.0, 1.0, WORDS), (1.3, 0.6, WORDS), (0.8, 0.9, 40), (1.3, 1.0, 300)],
)
@pytest.mark.slow
def test_frequencies(spread: float, temperature: float, top_p: float, top_k: int) -> None:
    """Each seed's own first number is uniform over seeds, as the sampler uses it."""
    logits_V = torch.randn(WORDS, generator=torch.Generator().manual_seed(3)) * spread
    uniforms = [random.Random(seed).random() for seed in range(DRAWS)]
    expected_V = cut(logits_V, temperature, top_p, top_k) * DRAWS
    ids, logprobs = drawn(logits_V, temperature, top_p, uniforms, top_k)
    counts_V = torch.bincount(ids, minlength=WORDS).double()
    assert counts_V[expected_V == 0].sum() == 0
    common = expected_V >= 5
    terms = (counts_V - expected_V)[common].square() / expected_V[common]
    # Chi-square's 99.9 % quantile by Wilson and Hilferty.
    free = int(common.sum()) - 1
    assert terms.sum() < free * (1 - 2 / (9 * free) + 3.09 * (2 / (9 * free)) ** 0.5) ** 3
    expected = (logits_V / temperature).log_softmax(-1)[ids]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


def test_the_flat_case_needs_more_than_the_head() -> None:
    logits_V = torch.randn(WORDS, generator=torch.Generator().manual_seed(3)) * 0.5
    assert (cut(logits_V, 0.8, 0.95) > 0).sum() > LIKELIEST


def test_without_top_k_the_same_tokens_are_drawn_as_with_all_of_them() -> None:
    logits_V = torch.randn(WORDS, generator=torch.Generator().manual_seed(6))
    uniforms = [random.Random(seed).random() for seed in range(500)]
    for plain, all_of_them in zip(
        drawn(logits_V, 0.8, 0.9, uniforms),
        drawn(logits_V, 0.8, 0.9, uniforms, 10 * WORDS),
        strict=True,
    ):
        assert torch.equal(plain, all_of_them)


@pytest.mark.parametrize("top_k", [1, 3, 300])
def test_the_last_token_of_top_k_is_the_last_that_is_drawn(top_k: int) -> None:
    logits_V = torch.randn(WORDS, generator=torch.Generator().manual_seed(4))
    kept_V = cut(logits_V, 1.0, 1.0, top_k)
    ids, _ = drawn(logits_V, 1.0, 1.0, [0.0, 1.0 - 2**-24], top_k)
    assert ids[0] == logits_V.argmax()
    assert kept_V[ids[1]] == kept_V[kept_V > 0].min()


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
def test_the_extremes_of_the_uniform_number(top_p: float) -> None:
    logits_V = torch.randn(WORDS, generator=torch.Generator().manual_seed(4))
    kept_V = cut(logits_V, 1.0, top_p)
    ids, _ = drawn(logits_V, 1.0, top_p, [0.0, 1.0 - 2**-24])
    assert ids[0] == logits_V.argmax()
    assert kept_V[ids[1]] == kept_V[kept_V > 0].min()


def test_rows_have_their_own_options() -> None:
    logits_RV = torch.randn(3, WORDS, generator=torch.Generator().manual_seed(5))
    options = torch.tensor([[0.0, 0.9, 0.99], [1.0, 1e-9, 0.99], [2.0, 1.0, 0.99]])
    ids, logprobs = pick(logits_RV, *options.unbind(-1))
    assert ids[:2].tolist() == logits_RV[:2].argmax(-1).tolist()
    assert logprobs[0] == 0.0
    assert logprobs[1] == pytest.approx(float(logits_RV[1].log_softmax(-1).max()))
    [alone], _ = drawn(logits_RV[2], 2.0, 1.0, [0.99])
    assert ids[2] == alone


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite(bad: float, temperature: float) -> None:
    logits_V = torch.zeros(WORDS)
    logits_V[7] = bad
    with pytest.raises(OrchestryError, match="logits are not finite"):
        drawn(logits_V, temperature, 0.9, [0.5])


PIECES = ["<end>", "a", "b", "ab", "Ċ", "ĊĊ", "Ã", "©", "Ġ"]
"""As byte-level BPE writes them: Ċ a line break, Ġ a space, Ã© the two bytes of é."""


def fast(plain: Tokenizer) -> Any:
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=plain, eos_token="<end>")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    plain = Tokenizer(models.BPE({word: number for number, word in enumerate(PIECES)}, []))
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
    ids = [PIECES.index(word) for word in words.split()]
    asked = [endings.of(ids[:end], 3, stop) for end in range(1, len(ids) + 1)]
    assert asked[:-1] == [None] * (len(ids) - 1)
    assert asked[-1] == ending
    assert endings.text(ids, stop) == text


def test_strings_of_many_tokens(tokenizer: Any) -> None:
    endings = Endings(tokenizer, {0})
    ids = [PIECES.index(word) for word in "baaaabaabaa"]
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
