"""What prompts share is computed once: the same numbers, from fewer tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from orchestry.backends.local.adapters import Adapters
from orchestry.backends.local.batch import Batch, Packed
from orchestry.backends.local.beginnings import LEAST, Beginning, shared_tokens
from orchestry.backends.local.logprobs import completion_logprobs, micro_batches
from orchestry.backends.local.model import Base
from orchestry.backends.local.trainer import Trainer
from orchestry.core.errors import ConfigError
from tests.backends.local.teams import some_ids, team
from tests.backends.local.test_trainer import batch_of, trainer
from tests.backends.local.tiny import Kind, tiny_folder

T = 0.8
RULES = some_ids(LEAST + 20, seed=7)


def behind(rules: tuple[int, ...], tails: Sequence[int], *lengths: int) -> list[Packed]:
    """Prompts with these rules and as many tokens more, each with answers of these lengths."""
    return [
        Packed(0, rules + some_ids(tail, seed=tail), tuple(some_ids(n, seed=n) for n in lengths))
        for tail in tails
    ]


def learned(
    base: Base, adapters: Adapters, groups: list[Packed], tokens: int, shares: bool
) -> tuple[list[Any], list[Any]]:
    """Log-probabilities and the gradient of their squares' sum, in micro-batches."""
    prompts = [one.prompt_ids for one in groups] if shares else []
    begun, found = Beginning.of(prompts, base, adapters, 0), list[Any]()
    for weight in adapters.parameters():
        weight.grad = None
    with begun.learned():
        for micro in micro_batches(groups, tokens, before=len(begun.ids)):
            part = completion_logprobs(base, adapters, micro, T, begun)
            torch.stack([(one * one).sum() for one in part]).sum().backward()
            found += [one.detach() for one in part]
    return found, [w.grad.clone() for w in adapters.parameters() if w.grad is not None]


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("tokens", [1, 256, 10_000])
def test_gradients_are_those_of_whole_rows(kind: Kind, tokens: int) -> None:
    base, adapters = team(kind, torch.float64)
    groups = behind(RULES, (3, 30, 9, 1), 5, 1, 12)
    one, other = (
        learned(base, adapters, groups, 4096, False),
        learned(base, adapters, groups, tokens, True),
    )
    assert len(one[1]) == len(other[1]) > 0
    for whole, shared in zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True):
        torch.testing.assert_close(shared, whole, atol=1e-9, rtol=1e-7)


def test_what_does_not_pay_is_not_shared() -> None:
    model, rules = team()[0].model, RULES[:LEAST]
    assert shared_tokens([(*rules, 5), (*rules, 6, 7)], model) == LEAST
    assert shared_tokens([(*rules[1:], 5), (*rules[1:], 6)], model) == 0, "too short"
    assert shared_tokens([(*rules, 5), (*rules, 5)], model) == 0, "one prompt, computed once anyway"
    assert shared_tokens([(*rules, 5), (*rules, 5, 6)], model) == LEAST, "a token is left to each"
    assert shared_tokens([rules, (*rules, 5)], model) == 0
    several = [(*rules[:40], 5, last) for last in range(6)]
    assert shared_tokens(several, model) == 41, "few tokens, saved five times"
    assert shared_tokens(several[:4], model) == 0
    assert shared_tokens([(*rules[:20], 5, last) for last in range(9)], model) == 0, "a short pass"
    assert shared_tokens([], model) == 0


@pytest.mark.parametrize(
    "rope",
    [{"rope_type": "longrope"}, {"full_attention": {"rope_type": "dynamic"}}],
    ids=str,
)
def test_keys_that_depend_on_the_rows_length_are_not_shared(rope: dict[str, Any]) -> None:
    """A long row turns all its keys otherwise: those of its beginning alone are others."""
    model: Any = team()[0].model
    model.config.rope_parameters = rope
    assert shared_tokens([(*RULES, 5), (*RULES, 6)], model) == 0


def test_layers_without_attention_are_refused_before_anything_is_computed() -> None:
    base, adapters = team()
    model: Any = base.model
    model.config.layer_types = ["conv", "full_attention"]
    with pytest.raises(ConfigError, match="has layers of type conv"):
        Beginning.of([(*RULES, 5), (*RULES, 6)], base, adapters, 0)


def test_sums_over_many_passes_are_exact_in_half_precision() -> None:
    """Added up in bfloat16, a thousand small gradients would be lost behind the first."""
    made = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    begun = Beginning((1,), [made, made.clone()])
    with begun.learned():
        for _ in range(1000):
            cache: Any = begun.cache(1)
            (cache.layers[0].keys + cache.layers[0].values).sum().backward()
    assert made.grad is not None
    assert made.grad.item() == 2000


def test_passes_without_their_backward_are_an_error() -> None:
    base, adapters = team()
    groups = behind(RULES, (3, 5), 4)
    begun = Beginning.of([one.prompt_ids for one in groups], base, adapters, 0)
    with pytest.raises(RuntimeError, match="backward"), begun.learned():
        completion_logprobs(base, adapters, groups, T, begun)


def test_copies_of_keys_and_values_count_in_a_pass() -> None:
    (whole,) = behind(some_ids(290), (10,), 21, 21, 21)
    groups = behind(RULES[:100], (40,) * 6, 11)
    assert [len(one) for one in micro_batches([whole], 400, before=290)] == [1] * 3, "72 + 300 + 20"
    passes = micro_batches(groups, 400, before=100)
    assert [len(one) for one in passes] == [4, 2], "100 + 4 x (40 + 10 + 100 / 4) = 400"
    assert [len(one) for one in micro_batches(groups, 400, joined=250, before=100)] == [2, 2, 2]
    assert [len(one) for one in micro_batches(groups, 64, before=100)] == [1] * 6


def like_each_other(made: Trainer, rules: int) -> Batch:
    """A batch of prompts that begin alike, of both agents."""
    drawn = batch_of(made, n=4)
    return replace(
        drawn,
        samples=tuple(
            replace(one, prompt_ids=some_ids(rules, seed=3) + some_ids(9, place), group=place)
            for place, one in enumerate(drawn.samples)
        ),
    )


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kl": 0.5},
        {"epochs": 2, "clip": 0.2},
        {"method": "full", "rank": 16, "alpha": 32},
        {"shared": True},
    ],
    ids=str,
)
def test_an_update_is_that_of_whole_prompts(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, steps = str(tiny_folder(tmp_path)), list[Any]()
    for least in (LEAST, 10_000):
        monkeypatch.setattr("orchestry.backends.local.beginnings.LEAST", least)
        made = trainer(folder, **settings)
        batch = like_each_other(made, LEAST + 9)
        seen = list[int]()
        embeddings = made.crews[0].base.model.get_input_embeddings()
        embeddings.register_forward_hook(lambda *a, seen=seen: seen.append(a[1][0].numel()))
        step = made.learn(batch)
        steps.append((step.loss, *step.step.norms.values(), made.loss(batch), sum(seen)))
    [*one, few], [*other, many] = steps
    assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    assert few < many / 2


def test_computed_again_layers_take_whole_prompts(tmp_path: Path) -> None:
    made = trainer(str(tiny_folder(tmp_path)), gradient_checkpointing=True)
    plain = trainer(str(tiny_folder(tmp_path / "same")))
    batch = like_each_other(made, LEAST + 9)
    assert made.learn(batch).step.norms == pytest.approx(plain.learn(batch).step.norms, rel=1e-4)
