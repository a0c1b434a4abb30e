"""Log-probabilities of packed answers: exact against one plain forward an answer, and small."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from orchestry.backends.local import logprobs
from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.batch import Packed
from orchestry.backends.local.logprobs import (
    completion_logprobs,
    micro_batches,
    token_logprobs,
)
from orchestry.backends.local.model import Base
from orchestry.backends.local.sampler import Prompt, Sampler
from orchestry.core.errors import ConfigError
from tests.backends.local.teams import plain_logprobs, some_ids, team
from tests.backends.local.tiny import Kind

END = 2
T = 0.8


@pytest.fixture(scope="module")
def two() -> tuple[Base, Adapters]:
    return team(dtype=torch.float64)


def group(agent: int, prompt: int, *lengths: int) -> Packed:
    """Answers of these lengths, each with its end token."""
    answers = [(*some_ids(length - 1, seed=length), END) for length in lengths]
    return Packed(agent, some_ids(prompt, seed=prompt), tuple(answers))


MIXED = [group(0, 5, 7, 1, 20, 3), group(1, 40, 2), group(-1, 1, 9), group(1, 12, 6, 6, 30, 11)]
"""G of 1 and 4, both agents and the bare base, prompts and answers of unequal lengths."""


def grads(adapters: Adapters, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, adapters.parameters(), materialize_grads=True))


def weighed(logprobs: list[torch.Tensor]) -> torch.Tensor:
    """A loss in which every token counts, each otherwise."""
    flat = torch.cat(logprobs)
    return (flat * torch.linspace(-1, 2, len(flat), dtype=flat.dtype)).sum()


def plainly(
    base: Base, adapters: Adapters, groups: list[Packed], temperature: float = T
) -> list[torch.Tensor]:
    return [
        plain_logprobs(base, adapters, g.agent_index, g.prompt_ids, ids, temperature)
        for g in groups
        for ids in g.completions
    ]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_values_and_gradients_are_those_of_plain_forwards(kind: Kind, tied: bool) -> None:
    base, adapters = team(kind, torch.float64)
    if not tied:
        model: Any = base.model
        head = model.get_output_embeddings()
        generator = torch.Generator().manual_seed(9)
        other = torch.randn(head.weight.shape, generator=generator, dtype=torch.float64)
        head.weight = torch.nn.Parameter(other, requires_grad=False)
    found = completion_logprobs(base, adapters, MIXED, T)
    expected = plainly(base, adapters, MIXED)
    assert_equal(found, expected)
    assert_equal(grads(adapters, weighed(found)), grads(adapters, weighed(expected)))


def test_a_pass_that_is_not_run_backward_leaves_nothing(two: tuple[Base, Adapters]) -> None:
    """Out of memory ends a pass; the next one, with less at a time, needs its room."""

    def left() -> int:
        completion_logprobs(*two, MIXED, T)
        gc.collect()
        return sum(type(one) is torch.Tensor for one in gc.get_objects())

    assert left() == left()


def test_a_gate_is_computed_again_and_not_kept() -> None:
    x, up = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    with logprobs.without_gates():
        gate = torch.nn.functional.silu(x)
        product: Any = gate * up
    found = product.grad_fn._saved_self
    assert torch.equal(found, gate)
    assert found.data_ptr() != gate.data_ptr()
    expected = torch.autograd.grad((torch.nn.functional.silu(x) * up).sum(), (x, up))
    assert all(map(torch.equal, torch.autograd.grad(product.sum(), (x, up)), expected))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_the_temperature_is_that_of_the_policy(
    two: tuple[Base, Adapters], temperature: float
) -> None:
    """Sampled at T and trained at T = 1 would be another policy's gradient."""
    found = completion_logprobs(*two, MIXED[:2], temperature)
    expected = plainly(*two, MIXED[:2], temperature)
    assert_equal(found, expected)
    assert_equal(grads(two[1], weighed(found)), grads(two[1], weighed(expected)))


def test_the_sampler_and_the_loss_mean_the_same_policy() -> None:
    base, adapters = team()
    asked = [
        Prompt(agent, some_ids(length), 30, T, 1.0, (), (1, 2, 3))
        for agent, length in ((0, 4), (1, 60))
    ]
    drawn = Sampler(base, adapters).draw(asked, 3)
    groups = [
        Packed(prompt.agent_index, prompt.prompt_ids, tuple(answer.ids for answer in answers))
        for prompt, answers in zip(asked, drawn, strict=True)
    ]
    found = completion_logprobs(base, adapters, groups, T)
    expected = [answer.logprobs for answers in drawn for answer in answers]
    for one, other in zip(found, expected, strict=True):
        assert one.tolist() == pytest.approx(other, abs=1e-5)


def test_the_end_token_is_trained(two: tuple[Base, Adapters]) -> None:
    """A trainer that shifts or masks by the padding token loses the last token's gradient."""
    short = group(0, 6, 4)
    [logprobs] = completion_logprobs(*two, [short], T)
    assert len(logprobs) == 4
    [expected] = plainly(*two, [short])
    found = grads(two[1], logprobs[-1])
    assert_equal(found, grads(two[1], expected[-1]))
    assert max(float(grad.abs().max()) for grad in found) > 1e-3


def test_padding_is_not_trained(two: tuple[Base, Adapters]) -> None:
    """A longer row beside it pads a row, and must change neither its sum nor its gradient."""
    short, long = group(0, 6, 4, 2), group(1, 80, 60)
    alone = completion_logprobs(*two, [short], T)
    beside = completion_logprobs(*two, [short, long], T)[:2]
    assert_equal(beside, alone)
    assert_equal(grads(two[1], weighed(beside)), grads(two[1], weighed(alone)))


def test_answers_do_not_see_each_other(two: tuple[Base, Adapters]) -> None:
    together = group(0, 9, 5, 12, 3)
    alone = [Packed(0, together.prompt_ids, (ids,)) for ids in together.completions]
    assert_equal(
        completion_logprobs(*two, [together], T),
        [found for one in alone for found in completion_logprobs(*two, [one], T)],
    )


def test_checkpointed_activations_change_nothing() -> None:
    base, adapters = team(dtype=torch.float64, dropout=0.3)
    base.model.train()
    adapters.reseed(1)
    expected = grads(adapters, weighed(completion_logprobs(base, adapters, MIXED, T)))
    base.model.activation_checkpointing_enable()
    adapters.reseed(1)
    found = grads(adapters, weighed(completion_logprobs(base, adapters, MIXED, T)))
    assert_equal(found, expected)


@pytest.mark.parametrize("chunk", [1, 100, 10_000])
def test_chunks_change_nothing(chunk: int) -> None:
    generator = torch.Generator().manual_seed(6)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((7, 5), (50, 5), (50,))
    )
    hidden.requires_grad_()
    ids = torch.tensor([0, 49, 3, 3, 7, 20, 1])
    found = token_logprobs(hidden, weight, bias, ids, T, chunk)
    logits = hidden @ weight.T + bias
    expected = (logits / T).log_softmax(-1)[torch.arange(7), ids]
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(
        lambda states: token_logprobs(states, weight, bias, ids, T, chunk), (hidden,)
    )


def test_halves_are_summed_in_float32() -> None:
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn(6, 8, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(3000, 8, generator=generator).bfloat16()
    ids = torch.arange(6)
    found = token_logprobs(hidden, weight, None, ids, 1.0)
    exact = torch.nn.functional.linear(hidden, weight).float().log_softmax(-1)
    torch.testing.assert_close(found, exact.gather(-1, ids[:, None]).squeeze(-1))
    assert found.dtype == torch.float32
    [grad] = torch.autograd.grad(found.sum(), hidden)
    assert grad.dtype == torch.bfloat16


def saved(prompt: int, answers: int) -> tuple[int, int]:
    """(largest, sum) of the elements of the tensors that a forward keeps for its gradient."""
    base, adapters = team()
    wide: Any = base.model
    wide.resize_token_embeddings(20_000, mean_resizing=False)
    wide.requires_grad_(False)
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    weights = {weight.untyped_storage().data_ptr() for weight in wide.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        completion_logprobs(base, adapters, [group(0, prompt, *[8] * answers)], T)
    kept = [size for pointer, size in sizes.items() if pointer not in weights]
    return max(kept), sum(kept)


def test_no_logits_are_kept() -> None:
    """At a vocabulary of 20,000 the logits of 8 answer tokens alone would be 160,000 numbers."""
    largest, whole = saved(prompt=40, answers=1)
    assert largest < 20_000
    longer, more = saved(prompt=160, answers=1)
    assert longer < 8 * 20_000
    # Activations and the mask grow with the prompt, by far less than a vocabulary a token.
    assert more - whole < 120 * 20_000 / 4
    assert max(saved(prompt=40, answers=8)) < 8 * 8 * 20_000


def test_micro_batches_keep_order_and_bound() -> None:
    groups = [*MIXED, group(0, 50, 30, 1, 30, 30), group(1, 300, 8)]
    batches = list(micro_batches(groups, 100))
    for batch in batches:
        longest = max(part.tokens for part in batch)
        assert len(batch) * longest <= 100 or (len(batch) == 1 and len(batch[0].completions) == 1)
    parts = [part for batch in batches for part in batch]
    assert [(p.agent_index, p.prompt_ids, ids) for p in parts for ids in p.completions] == [
        (g.agent_index, g.prompt_ids, ids) for g in groups for ids in g.completions
    ]
    # None is closed early: the next part would have passed the bound.
    for batch, after in pairwise(batches):
        longest = max(part.tokens for part in [*batch, after[0]])
        assert longest * (len(batch) + 1) > 100
    assert list(micro_batches(groups, 10_000)) == [groups]
    assert list(micro_batches([], 10)) == []


def test_groups_share_a_pass_up_to_a_lower_bound_and_are_not_split_by_it() -> None:
    groups = [group(0, 20, 10, 10, 10, 10), *(group(0, 20, 6) for _ in range(4))]
    batches = list(micro_batches(groups, 100, joined=52))
    assert batches == [groups[:1], groups[1:3], groups[3:]]
    assert list(micro_batches(groups, 40, joined=52)) == list(micro_batches(groups, 40))


def test_micro_batches_add_up_to_the_whole(two: tuple[Base, Adapters]) -> None:
    whole = completion_logprobs(*two, MIXED, T)
    parts = [
        found for batch in micro_batches(MIXED, 40) for found in completion_logprobs(*two, batch, T)
    ]
    assert_equal(parts, whole)
    assert_equal(grads(two[1], weighed(parts)), grads(two[1], weighed(whole)))


def test_bad_input(two: tuple[Base, Adapters]) -> None:
    base, adapters = two
    assert completion_logprobs(base, adapters, [], T) == []
    with pytest.raises(ConfigError, match=r"temperature of 0\.0 was found"):
        completion_logprobs(base, adapters, MIXED, 0.0)
    with pytest.raises(ValueError, match="at least one token"):
        completion_logprobs(base, adapters, [Packed(0, (5,), ((),))], T)


def test_models_whose_logits_are_changed_later_are_refused() -> None:
    base, adapters = team()
    base.model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        completion_logprobs(base, adapters, MIXED, T)


@pytest.mark.parametrize("chunk", [9, 18, 1000])
def test_an_output_layer_that_learns_gets_autograds_gradient(chunk: int) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((5, 4), (9, 4), (9,))
    ours = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    theirs = [each.clone().requires_grad_() for each in ours]
    for each in ours:
        each.requires_grad_()
    ids, gain = torch.tensor([1, 2, 8, 0, 1]), torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0])
    hidden, weight, bias = ours
    torch.autograd.backward((token_logprobs(hidden, weight, bias, ids, T, chunk) * gain).sum())
    logits = torch.nn.functional.linear(*theirs) / T
    expected = logits.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
    torch.autograd.backward((expected * gain).sum())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
