"""Drawing answers: what is drawn, that nobody else in the batch matters, and where answers end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.batch import Packed
from orchestry.backends.local.beginnings import LEAST
from orchestry.backends.local.logprobs import completion_logprobs
from orchestry.backends.local.model import Base
from orchestry.backends.local.sampler import Drawn, Prompt, Sampler, _causal
from orchestry.backends.local.sizes import JOINED_ON_A_CPU, PREFILL_TOKENS
from orchestry.core.errors import ConfigError, Interrupted, OrchestryError
from tests.backends.local.teams import plain_logprobs, some_ids, team
from tests.backends.local.tiny import Kind

KINDS: tuple[Kind, ...] = ("llama", "qwen2")


@pytest.fixture(scope="module")
def two() -> tuple[Base, Adapters]:
    return team()


def ask(agent: int, length: int, seeds: tuple[int, ...] = (1,), **options: Any) -> Prompt:
    """A prompt of `length` tokens that differs by agent and length."""
    plain = Prompt(agent, some_ids(length, seed=length), 20, 0.8, 0.95, (), seeds)
    return replace(plain, **options)


def assert_same(one: Drawn, other: Drawn) -> None:
    assert one.ids == other.ids
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert (one.text, one.stop) == (other.text, other.stop)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_cold_draws_are_the_greedy_ones_of_generate(kind: Kind, temperature: float) -> None:
    base, adapters = team(kind)
    model: Any = base.model
    asked = [ask(agent, length, temperature=temperature) for agent, length in ((0, 9), (1, 30))]
    drawn = Sampler(base, adapters).draw(asked, 1)
    for prompt, [answer] in zip(asked, drawn, strict=True):
        with adapters.rows([prompt.agent_index]):
            expected = model.generate(
                input_ids=torch.tensor([prompt.prompt_ids]),
                attention_mask=torch.ones(1, len(prompt.prompt_ids), dtype=torch.long),
                do_sample=False,
                max_new_tokens=prompt.max_tokens,
            )
        assert answer.ids == tuple(expected[0, len(prompt.prompt_ids) :].tolist())
        assert answer.logprobs == pytest.approx([0.0] * len(answer.ids), abs=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_are_those_of_a_plain_forward(kind: Kind) -> None:
    base, adapters = team(kind)
    asked = [ask(0, 5, (1, 2), max_tokens=150), ask(1, 170, (3, 4), temperature=1.3)]
    for prompt, answers in zip(asked, Sampler(base, adapters).draw(asked, 2), strict=True):
        for answer in answers:
            with torch.no_grad():
                expected = plain_logprobs(
                    base,
                    adapters,
                    prompt.agent_index,
                    prompt.prompt_ids,
                    answer.ids,
                    prompt.temperature,
                )
            # Sums of float32 in another order; how far apart they are depends on the processor.
            assert answer.logprobs == pytest.approx(expected.tolist(), abs=3e-5)


@pytest.mark.parametrize("n", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_draw_depends_on_nobody_else_in_the_batch(two: tuple[Base, Adapters], n: int) -> None:
    """Mixed adapters, options and lengths, left padding, rows that end early, batches split."""
    asked = [
        ask(0, 3, tuple(range(n))),
        ask(1, 200, tuple(range(n)), max_tokens=7, temperature=1.5, top_p=1.0),
        ask(-1, 40, tuple(range(100, 100 + n)), max_tokens=70),
        ask(1, 3, tuple(range(n)), max_tokens=1),
        ask(0, 40, tuple(range(n)), temperature=0.0),
        ask(0, 3, tuple(range(50, 50 + n)), top_p=0.5, stop=("e", "\n")),
    ]
    together = Sampler(*two).draw(asked, n)
    split = Sampler(*two, max_rows=4).draw(asked[::-1], n)[::-1]
    for prompt, answers, others in zip(asked, together, split, strict=True):
        for answer, other in zip(answers, others, strict=True):
            assert_same(answer, other)
            assert len(answer.ids) <= prompt.max_tokens
        [[alone]] = Sampler(*two).draw([replace(prompt, seeds=prompt.seeds[-1:])], 1)
        assert_same(answers[-1], alone)


def test_each_row_uses_its_own_adapter(two: tuple[Base, Adapters]) -> None:
    ids = some_ids(12)
    drawn = Sampler(*two).draw([ask(agent, 1, prompt_ids=ids) for agent in (0, 1, -1)], 1)
    assert len({answer.ids for [answer] in drawn}) == 3


def test_an_interrupt_ends_a_draw_between_two_tokens(two: tuple[Base, Adapters]) -> None:
    heard = list[int]()

    def beat(tokens: int) -> None:
        heard.append(tokens)
        if len(heard) == 3:
            raise Interrupted("stop")

    with pytest.raises(Interrupted):
        Sampler(*two, beat=beat).draw([ask(0, 9, (1, 2))], 2)
    assert heard == [2, 2, 2]
    told = list[int]()
    (drawn,) = Sampler(*two, beat=told.append).draw([ask(0, 9, (1, 2))], 2)
    assert sum(told) <= sum(len(one.ids) for one in drawn) <= sum(told) + 2


def test_seeds_tell_samples_apart_and_repeat_them(two: tuple[Base, Adapters]) -> None:
    [answers] = Sampler(*two).draw([ask(0, 10, (5, 6, 5))], 3)
    assert answers[0].ids != answers[1].ids
    assert_same(answers[0], answers[2])


def test_an_end_token_ends_an_answer_and_is_kept(two: tuple[Base, Adapters]) -> None:
    base, _ = two
    [answers] = Sampler(*two).draw([ask(0, 10, tuple(range(64)), temperature=3.0, top_p=1.0)], 64)
    end = base.tokenizer.eos_token_id
    ended = [answer for answer in answers if answer.stop == "end"]
    assert ended
    for answer in answers:
        assert (end in answer.ids) == (answer.stop == "end")
        assert end not in answer.ids[:-1]
        assert base.tokenizer.eos_token not in answer.text
        assert len(answer.ids) == 20 or answer.stop == "end"
        assert len(answer.logprobs) == len(answer.ids)


def test_a_stop_string_ends_an_answer_before_itself(two: tuple[Base, Adapters]) -> None:
    """One byte is one token here, so what is kept can be told to the byte."""
    prompt = ask(0, 10, tuple(range(16)), temperature=1.5)
    [free] = Sampler(*two).draw([prompt], 16)
    answer = max(free, key=lambda answer: sum(map(str.isascii, answer.text)))
    place = next(i for i in range(3, len(answer.text)) if answer.text[i - 1 : i + 1].isascii())
    stop = answer.text[place - 1 : place + 1]
    [stopped] = Sampler(*two).draw([replace(prompt, stop=("never there", stop))], 16)
    found = stopped[free.index(answer)]
    assert found.stop == "stop"
    assert found.text == answer.text[: answer.text.index(stop)]
    assert found.ids == answer.ids[: len(found.ids)]
    decoded = two[0].tokenizer.decode(list(found.ids))
    assert isinstance(decoded, str)
    assert decoded.endswith(stop)
    for before, after in zip(free, stopped, strict=True):
        assert stop not in after.text
        if stop not in before.text:
            assert_same(before, after)


def test_prompts_are_computed_once_and_ended_rows_no_more(two: tuple[Base, Adapters]) -> None:
    base, adapters = two
    seen = []
    handle = base.model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0].numel())
    )
    asked = [
        ask(0, 30, (1, 2), max_tokens=5),
        ask(0, 30, (3, 4), max_tokens=9),
        ask(1, 30, (1, 2), max_tokens=1),
    ]
    [*first], [*second], [*third] = Sampler(base, adapters).draw(asked, 2)
    handle.remove()
    assert seen[0] == 2 * 30
    # The last token of an answer is drawn but never read.
    assert sum(seen[1:]) == sum(len(answer.ids) - 1 for answer in first + second + third)


def _passes(two: tuple[Base, Adapters], asked: list[Prompt], **how: Any) -> list[tuple[int, int]]:
    """Shapes of what goes through the model until each prompt has its first token."""
    seen: list[tuple[int, int]] = []
    handle = (
        two[0]
        .model.get_input_embeddings()
        .register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape)))
    )
    firsts = [replace(prompt, max_tokens=1, seeds=(1,)) for prompt in asked]
    Sampler(*two, **how).draw(firsts, 1)
    handle.remove()
    return seen


@pytest.mark.parametrize(
    ("most", "bound", "passes"), [(PREFILL_TOKENS, PREFILL_TOKENS, 4), (None, JOINED_ON_A_CPU, 32)]
)
def test_prompts_are_computed_in_passes_of_bounded_size(
    two: tuple[Base, Adapters], most: int | None, bound: int, passes: int
) -> None:
    """A pass over all of them had a mask of (B, 1, P, P)."""
    asked = [ask(number % 2, 400 - number) for number in range(32)]
    seen = _passes(two, asked, prefill_tokens=most)
    assert sum(rows for rows, _ in seen) == 32
    assert all(rows * width <= bound for rows, width in seen)
    assert len(seen) == passes  # no smaller than they must be


def test_few_prompts_are_one_pass_and_a_long_one_has_its_own(two: tuple[Base, Adapters]) -> None:
    asked = [ask(0, 3), ask(1, 170), ask(0, 40)]
    assert _passes(two, asked) == [(3, 170)]
    assert _passes(two, asked, prefill_tokens=100) == [(2, 40), (1, 170)]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("most", [1, 50, 130])
def test_answers_are_the_same_in_one_pass_and_in_many(
    two: tuple[Base, Adapters], most: int
) -> None:
    lengths = (60, 3, 44, 12, 12, 5)
    asked = [ask(n % 3 - 1, length, (n, n + 50)) for n, length in enumerate(lengths)]
    one = Sampler(*two).draw(asked, 2)
    many = Sampler(*two, prefill_tokens=most).draw(asked, 2)
    for [*answers], [*others] in zip(one, many, strict=True):
        for answer, other in zip(answers, others, strict=True):
            assert_same(answer, other)
    assert Sampler(*two, prefill_tokens=most).draw(asked, 2) == many  # to the last bit


def behind(agent: int, rules: int, own: int, seeds: tuple[int, ...]) -> Prompt:
    """A prompt with so many tokens that others have too, and so many of its own."""
    ids = some_ids(rules, seed=9 + agent) + some_ids(own, seed=own)
    return Prompt(agent, ids, 12, 0.8, 1.0, (), seeds)


SHARED = [
    *(behind(0, LEAST + 5, own, (own, 1)) for own in (3, 40, 1, 9)),
    *(behind(1, LEAST + 50, own, (own, 1)) for own in (7, 2)),
    behind(-1, 20, 4, (5, 6)),
    behind(-1, 30, 8, (5, 6)),
]
"""Two agents whose prompts begin alike, by lengths that differ, and two prompts that don't."""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("most", [1, 60, 4096])
def test_a_beginning_that_is_computed_once_changes_no_answer(kind: Kind, most: int) -> None:
    two = team(kind, torch.float64)
    together = Sampler(*two, prefill_tokens=most).draw(SHARED, 2)
    for [*answers], prompt in zip(together, SHARED, strict=True):
        [[*alone]] = Sampler(*two).draw([prompt], 2)
        for answer, other in zip(answers, alone, strict=True):
            assert_same(answer, other)


def test_a_beginning_is_computed_once(two: tuple[Base, Adapters]) -> None:
    assert _passes(two, SHARED[:6]) == [(2, LEAST + 50), (6, 40)]
    assert _passes(two, SHARED[4:]) == [(2, 38), (1, LEAST + 50), (2, 7)]
    assert _passes(two, SHARED[:1]) == [(1, LEAST + 8)]


def test_dropout_is_off_while_drawing_and_on_again_after() -> None:
    base, adapters = team(dropout=0.5)
    prompt = ask(0, 10)
    [[expected]] = Sampler(base, adapters).draw([prompt], 1)
    base.model.train()
    [[drawn]] = Sampler(base, adapters).draw([prompt], 1)
    assert_same(drawn, expected)
    assert base.model.training


def test_nothing_asked_nothing_drawn(two: tuple[Base, Adapters]) -> None:
    assert Sampler(*two).draw([], 4) == []
    assert Sampler(*two).draw([ask(0, 3, ())], 0) == [[]]


def test_a_seed_a_sample(two: tuple[Base, Adapters]) -> None:
    with pytest.raises(ValueError, match="a seed for each of its 2 samples"):
        Sampler(*two).draw([ask(0, 3, (1,))], 2)


def test_diverged_weights_are_named() -> None:
    base, adapters = team()
    with torch.no_grad():
        adapters.parameters(0)[0].fill_(float("nan"))
    with pytest.raises(OrchestryError, match="logits are not finite"):
        Sampler(base, adapters).draw([ask(0, 3)], 1)


def test_models_that_attend_otherwise_are_refused() -> None:
    base, adapters = team("qwen2")
    base.model.config.sliding_window = 16
    with pytest.raises(ConfigError, match="within a window of 16 tokens, and a row of 23 was"):
        Sampler(base, adapters).draw([ask(0, 3)], 1)
    base.model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ConfigError, match="layers of type linear_attention"):
        Sampler(base, adapters).draw([ask(0, 3)], 1)


def test_padding_sees_padding_so_that_no_row_of_scores_is_empty() -> None:
    lengths = torch.tensor([[False] * 3 + [True] * 2, [True] * 5])
    mask = _causal(lengths, torch.zeros(2, 0, dtype=torch.bool), torch.float32)
    assert mask.shape == (2, 1, 5, 5)
    assert bool((mask == 0).any(-1).all())
    assert mask[0, 0, 4].tolist()[3:] == [0, 0]
    assert bool((mask[0, 0, 3:, :3] < 0).all())
    assert mask.stride(2) % 8 == 0


def test_adapters_are_cast_once_for_all_tokens_of_a_draw() -> None:
    """In bfloat16, beside the path that gradients take, which casts them anew each time."""
    base, adapters = team()
    model: Any = base.model
    model.to(torch.bfloat16)
    asked = [ask(0, 5, (1, 2), max_tokens=20), ask(1, 9, (3, 4), max_tokens=20)]
    drawn = Sampler(base, adapters).draw(asked, 2)
    packed = [
        Packed(prompt.agent_index, prompt.prompt_ids, tuple(one.ids for one in answers))
        for prompt, answers in zip(asked, drawn, strict=True)
    ]
    with torch.enable_grad():
        learned = completion_logprobs(base, adapters, packed, 0.8)
    flat = [one for answers in drawn for one in answers]
    for one, own in zip(flat, learned, strict=True):
        assert one.logprobs == pytest.approx(own.tolist(), abs=0.2)
    plan, site = adapters._planned([0, 0, 1, 1]), adapters._sites[0]
    with torch.no_grad():
        assert plan.pair(site, 1, torch.bfloat16)[0] is plan.pair(site, 1, torch.bfloat16)[0]
        assert not torch.equal(*(plan.pair(site, n, torch.bfloat16)[0] for n in (0, 1)))
    assert plan.pair(site, 1, torch.bfloat16)[0].requires_grad
